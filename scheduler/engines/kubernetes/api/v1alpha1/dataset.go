package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a Dataset.
const (
	// DatasetReady is true if at least one node has the dataset.
	DatasetReady = "Ready"
	// DatasetPinned is true if the plan keeps the quota of the spec. Missing without a quota.
	DatasetPinned = "QuotaPinned"
)

// SecretReference names a Secret in the namespace of Larder.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// DatasetSpec says where a dataset is and how it is cached.
type DatasetSpec struct {
	// The directory or bucket of the dataset: file://, http(s):// or s3://. All nodes read the same URL.
	// +kubebuilder:validation:MinLength=1
	URL string `json:"url"`
	// Format of the objects. Found from the objects by default.
	// +kubebuilder:validation:Enum=raw;webdataset;mds;litdata;tfrecord;megatron;larder
	// +optional
	Format string `json:"format,omitempty"`
	// Endpoint of an S3 server. Default: Amazon's for the region.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// Region of an S3 bucket.
	// +optional
	Region string `json:"region,omitempty"`
	// A Secret in the namespace of Larder with the keys aws_access_key_id, aws_secret_access_key and, if there is one,
	// aws_session_token. For s3:// only. Default: the credentials of the node.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// The users who may read the dataset, as the octal mode of a file. 0444 allows every user of every pod.
	// +kubebuilder:validation:Pattern=`^0?[0-7]{3}$`
	// +kubebuilder:default="0444"
	// +optional
	Mode string `json:"mode,omitempty"`
	// The cache of the dataset over all nodes. Default: the plan decides.
	// +optional
	Quota *resource.Quantity `json:"quota,omitempty"`
	// True to fill the quota before the first job reads.
	// +optional
	Warm bool `json:"warm,omitempty"`
}

// DatasetStatus says what the cluster has of a dataset.
type DatasetStatus struct {
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// The cache that all of the dataset takes: an estimate until it is cached.
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Bytes in the caches of all nodes.
	// +optional
	CachedBytes int64 `json:"cachedBytes,omitempty"`
	// The quota of the plan, over all nodes.
	// +optional
	QuotaBytes int64 `json:"quotaBytes,omitempty"`
	// The number of nodes that have the dataset.
	// +optional
	Nodes int32 `json:"nodes,omitempty"`
	// Cached bytes of each node that has some.
	// +optional
	CachedBytesByNode map[string]int64 `json:"cachedBytesByNode,omitempty"`
	// The jobs that read the dataset.
	// +optional
	Jobs []string `json:"jobs,omitempty"`
	// SizeBytes for people.
	// +optional
	Size string `json:"size,omitempty"`
	// CachedBytes for people.
	// +optional
	Cached string `json:"cached,omitempty"`
	// The quota that Larder has pinned for the spec, so that it is released when the spec has none.
	// +optional
	PinnedBytes int64 `json:"pinnedBytes,omitempty"`
}

// Dataset is a dataset that the nodes of the cluster cache. Its name is the dataset's name in Larder.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Cached",type=string,JSONPath=`.status.cached`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Dataset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DatasetSpec `json:"spec"`
	// +optional
	Status DatasetStatus `json:"status,omitempty"`
}

// DatasetList is what the API server returns for a list.
//
// +kubebuilder:object:root=true
type DatasetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Dataset `json:"items"`
}
