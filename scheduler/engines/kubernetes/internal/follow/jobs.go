// Package follow tells the allocator which pods run where, and on how many GPUs. Kubernetes places the pods.
package follow

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Labels of pods.
const (
	// DatasetLabel names the dataset that a pod reads. Pods without it are not followed.
	DatasetLabel = "larder.io/dataset"
	// JobLabel makes all pods of a namespace with the same value one job. Without it, a job is the pods of one owner.
	JobLabel = "larder.io/job"
	// GangLabel does the same, and makes the pods a gang for the allocator, if that places them.
	GangLabel = "larder.io/gang"
	// JobSetLabel is what JobSet's controller sets on the pods of a JobSet: its name. Unless they have one of the labels
	// above, all of them are one job, and a gang.
	JobSetLabel = "jobset.sigs.k8s.io/jobset-name"
)

// NamePrefix begins the names of all jobs that come from Kubernetes, and of no other jobs.
const NamePrefix = "kubernetes-"

// Job is a job as its pods make it.
type Job struct {
	Name    string
	Dataset string
	// The uid of the job's processes. Nil if the pods do not say it.
	User *int64
	// GPUs by node.
	Nodes map[string]int64
}

// JobName returns the name under which the loaders of a pod connect. The chart's admission policy sets LARDER_JOB to the
// same name.
func JobName(pod *corev1.Pod) string {
	name := pod.Name
	if pod.GenerateName != "" {
		name = pod.GenerateName // The policy does not know the name yet.
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		name = owner.Name
	}
	if label := LabelledJob(pod.Labels); label != "" {
		name = label
	}
	return NamePrefix + pod.Namespace + "." + name
}

// LabelledJob returns the name that labels of a pod give to its job; empty: none.
func LabelledJob(labels map[string]string) string {
	return cmp.Or(labels[GangLabel], labels[JobLabel], labels[JobSetLabel])
}

// JobsOf returns the jobs that the pods make, by name. A pod counts from its binding to a node until it has ended or is
// gone: a pod that is being deleted still runs.
func JobsOf(pods []corev1.Pod, gpuResources []string) map[string]Job {
	counted := make([]*corev1.Pod, 0, len(pods))
	for i := range pods {
		if runs(&pods[i]) {
			counted = append(counted, &pods[i])
		}
	}
	// The oldest pod decides about what all pods of a job should agree on.
	slices.SortFunc(counted, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	jobs := make(map[string]Job)
	for _, pod := range counted {
		name := JobName(pod)
		job, known := jobs[name]
		if !known {
			job = Job{Name: name, Dataset: pod.Labels[DatasetLabel], User: UserOf(&pod.Spec), Nodes: make(map[string]int64)}
			jobs[name] = job
		}
		job.Nodes[pod.Spec.NodeName] += gpusOf(pod, gpuResources)
	}
	return jobs
}

func runs(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Labels[DatasetLabel] != "" && pod.Spec.NodeName != "" && !ended
}

func gpusOf(pod *corev1.Pod, resources []string) int64 { return GPUsOf(&pod.Spec, resources) }

// GPUsOf returns the GPUs that a pod of this spec requests.
func GPUsOf(spec *corev1.PodSpec, resources []string) int64 {
	requests := RequestsOf(spec)
	var gpus int64
	for _, name := range resources {
		quantity := requests[corev1.ResourceName(name)]
		gpus += quantity.Value()
	}
	return gpus
}

// RequestsOf returns what a pod of this spec requests. In a Job's template, limits are not requests yet.
func RequestsOf(spec *corev1.PodSpec) corev1.ResourceList {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: withRequests(spec.InitContainers), Containers: withRequests(spec.Containers),
	}}
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

func withRequests(containers []corev1.Container) []corev1.Container {
	made := make([]corev1.Container, len(containers))
	for i := range containers {
		requests := maps.Clone(containers[i].Resources.Limits)
		if requests == nil {
			requests = make(corev1.ResourceList)
		}
		maps.Copy(requests, containers[i].Resources.Requests)
		made[i].RestartPolicy = containers[i].RestartPolicy
		made[i].Resources.Requests = requests
	}
	return made
}

// UserOf returns the uid of the processes of a pod as larderd sees it, if all containers have the same.
func UserOf(spec *corev1.PodSpec) *int64 {
	if spec.HostUsers != nil && !*spec.HostUsers {
		return nil // The kernel maps the uids.
	}
	var common *int64
	for i := range spec.Containers {
		user := containerUser(spec, &spec.Containers[i])
		if user == nil || (common != nil && *common != *user) {
			return nil
		}
		common = user
	}
	return common
}

func containerUser(spec *corev1.PodSpec, container *corev1.Container) *int64 {
	if context := container.SecurityContext; context != nil && context.RunAsUser != nil {
		return context.RunAsUser
	}
	if context := spec.SecurityContext; context != nil {
		return context.RunAsUser
	}
	return nil
}
