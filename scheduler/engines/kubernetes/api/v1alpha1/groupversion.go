// Package v1alpha1 has the resources of larder.io/v1alpha1: what an administrator tells Larder through Kubernetes.
//
// +kubebuilder:object:generate=true
// +groupName=larder.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and the version of this package.
var GroupVersion = schema.GroupVersion{Group: "larder.io", Version: "v1alpha1"}

// AddToScheme makes the types of this package known to clients.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Dataset{}, &DatasetList{}, &RemoteBudget{}, &RemoteBudgetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
