package kueue

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kueue's kinds. Its objects are read without its module, which would add its dependencies to this program.
var (
	checkKind    = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "AdmissionCheck"}
	workloadKind = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "Workload"}
)

// States of an admission check.
const (
	statePending  = "Pending"
	stateReady    = "Ready"
	stateRetry    = "Retry"
	stateRejected = "Rejected"
)

// podSet is a set of equal pods of a Workload.
type podSet struct {
	Name     string                 `json:"name"`
	Count    int64                  `json:"count"`
	Template corev1.PodTemplateSpec `json:"template"`
}

// podSetUpdate is what Kueue changes of the pods of a set before they start.
type podSetUpdate struct {
	Name         string            `json:"name"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// checkState is the state of one admission check of a Workload.
type checkState struct {
	Name               string         `json:"name"`
	State              string         `json:"state"`
	Message            string         `json:"message"`
	LastTransitionTime metav1.Time    `json:"lastTransitionTime"`
	PodSetUpdates      []podSetUpdate `json:"podSetUpdates,omitempty"`
}

// workload is what this package reads of a Workload.
type workload struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		PodSets []podSet `json:"podSets"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Admission  *struct {
			PodSetAssignments []struct {
				Name  string `json:"name"`
				Count *int64 `json:"count"`
				// Kueue has chosen the nodes already.
				TopologyAssignment *struct{} `json:"topologyAssignment"`
			} `json:"podSetAssignments"`
		} `json:"admission"`
		AdmissionChecks []checkState `json:"admissionChecks"`
	} `json:"status"`
}

func workloadOf(object *unstructured.Unstructured) (*workload, error) {
	var read workload
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
		return nil, fmt.Errorf("read Workload %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return &read, nil
}

func (w *workload) is(condition string) bool {
	return meta.IsStatusConditionTrue(w.Status.Conditions, condition)
}

// holdsQuota tells whether Kueue has given the Workload its quota: it starts when its checks are ready, or runs.
func (w *workload) holdsQuota() bool {
	return w.Metadata.DeletionTimestamp == nil && w.is("QuotaReserved") && !w.is("Evicted") && !w.is("Finished")
}

// quotaSince returns when the Workload got its quota.
func (w *workload) quotaSince() metav1.Time {
	if condition := meta.FindStatusCondition(w.Status.Conditions, "QuotaReserved"); condition != nil {
		return condition.LastTransitionTime
	}
	return w.Metadata.CreationTimestamp
}

// statesOf returns the states of the checks that are among the names.
func (w *workload) statesOf(names map[string]struct{}) []checkState {
	var own []checkState
	for i := range w.Status.AdmissionChecks {
		if _, is := names[w.Status.AdmissionChecks[i].Name]; is {
			own = append(own, w.Status.AdmissionChecks[i])
		}
	}
	return own
}

// hasTopology tells whether Kueue has chosen the nodes of a pod set.
func (w *workload) hasTopology(set *podSet) bool {
	if w.Status.Admission != nil {
		for _, assigned := range w.Status.Admission.PodSetAssignments {
			if assigned.Name == set.Name {
				return assigned.TopologyAssignment != nil
			}
		}
	}
	return false
}

// podsOf returns how many pods of a set Kueue lets start: fewer than the set has, if the Workload is admitted in part.
func (w *workload) podsOf(set *podSet) int64 {
	if w.Status.Admission != nil {
		for _, assigned := range w.Status.Admission.PodSetAssignments {
			if assigned.Name == set.Name && assigned.Count != nil {
				return *assigned.Count
			}
		}
	}
	return set.Count
}

// String names the Workload in messages.
func (w *workload) String() string {
	return strings.Join([]string{w.Metadata.Namespace, w.Metadata.Name}, "/")
}
