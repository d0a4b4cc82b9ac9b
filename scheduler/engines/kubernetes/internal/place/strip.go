package place

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

// StripPod makes a pod small before it is kept in memory: what no part of this program reads goes, and of pods that are
// none of Larder's, all but the name.
func StripPod(object any) (any, error) {
	pod, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	if pod.Labels[follow.DatasetLabel] == "" && podOf(pod, nil) == nil && !isGated(&pod.Spec) {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}}, nil
	}
	pod.ManagedFields = nil
	pod.Spec.Volumes = nil
	pod.Spec.Tolerations = nil
	pod.Spec.Affinity = nil
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			one := &containers[i]
			*one = corev1.Container{
				Name: one.Name, Resources: one.Resources, SecurityContext: one.SecurityContext, RestartPolicy: one.RestartPolicy,
			}
		}
	}
	return pod, nil
}
