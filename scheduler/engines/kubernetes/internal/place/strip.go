package place

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

// StripPods returns what makes a pod small before it is kept in memory: what no part of this program reads goes. Of pods
// that are none of Larder's, the name stays, and the GPUs with their node.
func StripPods(gpuResources []string) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if pod, is := object.(*corev1.Pod); is {
			return stripped(pod, gpuResources), nil
		}
		return object, nil
	}
}

func stripped(pod *corev1.Pod, gpuResources []string) *corev1.Pod {
	if pod.Labels[follow.DatasetLabel] == "" && podOf(pod, nil) == nil && !isGated(&pod.Spec) {
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}}
		if follow.GPUsOf(&pod.Spec, gpuResources) > 0 {
			other.Spec = corev1.PodSpec{
				NodeName: pod.Spec.NodeName, InitContainers: pod.Spec.InitContainers, Containers: pod.Spec.Containers,
			}
			other.Status.Phase = pod.Status.Phase
			stripContainers(&other.Spec)
		}
		return other
	}
	pod.ManagedFields = nil
	pod.Spec.Volumes = nil
	pod.Spec.Tolerations = nil
	pod.Spec.Affinity = nil
	stripContainers(&pod.Spec)
	return pod
}

func stripContainers(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			one := &containers[i]
			*one = corev1.Container{
				Name: one.Name, Resources: one.Resources, SecurityContext: one.SecurityContext, RestartPolicy: one.RestartPolicy,
			}
		}
	}
}
