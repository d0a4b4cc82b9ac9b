package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BudgetApplied is true while the allocator plans with the budget.
const BudgetApplied = "Applied"

// RemoteBudgetSpec says what all jobs together may take of the remote.
type RemoteBudgetSpec struct {
	// Bytes per second, such as 2G.
	BytesPerSecond resource.Quantity `json:"bytesPerSecond"`
}

// RemoteBudgetStatus says whether the budget is in force.
type RemoteBudgetStatus struct {
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RemoteBudget is the remote bandwidth of all jobs together. An allocator has one: of several, the oldest is applied.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Bytes/s",type=string,JSONPath=`.spec.bytesPerSecond`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RemoteBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RemoteBudgetSpec `json:"spec"`
	// +optional
	Status RemoteBudgetStatus `json:"status,omitempty"`
}

// RemoteBudgetList is what the API server returns for a list.
//
// +kubebuilder:object:root=true
type RemoteBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RemoteBudget `json:"items"`
}
