package follow

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

const gpuResource = "nvidia.com/gpu"

var gpuResources = []string{gpuResource}

// pod makes a pod of the dataset "images" on a node, with one container.
func pod(name, node string, gpus int64, changes ...func(*corev1.Pod)) corev1.Pod {
	made := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{DatasetLabel: "images"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "train",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				gpuResource: *resource.NewQuantity(gpus, resource.DecimalSI)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, change := range changes {
		change(&made)
	}
	return made
}

func ownedBy(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: name, Controller: &controller}}
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func withUser(user int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user} }
}

func TestJobName(t *testing.T) {
	for _, c := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"pod of nobody", pod("p", "n1", 1), "kubernetes-team.p"},
		{"generated name", pod("p-x1", "n1", 1, func(pod *corev1.Pod) { pod.GenerateName = "p-" }), "kubernetes-team.p-"},
		{"pod of a Job", pod("p", "n1", 1, ownedBy("train")), "kubernetes-team.train"},
		{"label goes first", pod("p", "n1", 1, ownedBy("train"), labelled(JobLabel, "gang")), "kubernetes-team.gang"},
		{"pod of a JobSet", pod("p", "n1", 1, ownedBy("train-workers-0"), labelled(JobSetLabel, "train")),
			"kubernetes-team.train"},
		{"label of a pod of a JobSet", pod("p", "n1", 1, labelled(JobSetLabel, "train"), labelled(JobLabel, "eval")),
			"kubernetes-team.eval"},
		{"empty label", pod("p", "n1", 1, labelled(JobLabel, "")), "kubernetes-team.p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := JobName(&c.pod); got != c.want {
				t.Errorf("JobName() = %q, want %q", got, c.want)
			}
		})
	}
}

func TestPodsOfOneOwnerAreOneJob(t *testing.T) {
	jobs := JobsOf([]corev1.Pod{
		pod("a", "n1", 2, ownedBy("train")), pod("b", "n1", 3, ownedBy("train")), pod("c", "n2", 4, ownedBy("train")),
	}, gpuResources)
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1", len(jobs))
	}
	if got, want := jobs["kubernetes-team.train"].Nodes, (map[string]int64{"n1": 5, "n2": 4}); !maps.Equal(got, want) {
		t.Errorf("GPUs by node are %v, want %v", got, want)
	}
}

func TestWhichPodsCount(t *testing.T) {
	now := metav1.Now()
	for _, c := range []struct {
		name   string
		pod    corev1.Pod
		counts bool
	}{
		{"running", pod("p", "n1", 1), true},
		{"bound, not started", pod("p", "n1", 1, inPhase(corev1.PodPending)), true},
		{"being deleted", pod("p", "n1", 1, func(pod *corev1.Pod) { pod.DeletionTimestamp = &now }), true},
		{"not bound", pod("p", "", 1, inPhase(corev1.PodPending)), false},
		{"succeeded", pod("p", "n1", 1, inPhase(corev1.PodSucceeded)), false},
		{"failed", pod("p", "n1", 1, inPhase(corev1.PodFailed)), false},
		{"without dataset", pod("p", "n1", 1, labelled(DatasetLabel, "")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := len(JobsOf([]corev1.Pod{c.pod}, gpuResources)) == 1; got != c.counts {
				t.Errorf("counts = %v, want %v", got, c.counts)
			}
		})
	}
}

func TestOldestPodDecides(t *testing.T) {
	at := func(second int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(time.Unix(int64(second), 0)) }
	}
	jobs := JobsOf([]corev1.Pod{
		pod("a", "n1", 1, ownedBy("train"), at(2), labelled(DatasetLabel, "texts"), withUser(7)),
		pod("b", "n1", 1, ownedBy("train"), at(1), withUser(8)),
	}, gpuResources)
	job := jobs["kubernetes-team.train"]
	if job.Dataset != "images" || job.User == nil || *job.User != 8 {
		t.Errorf("the job is %+v, want the dataset and the user of the older pod", job)
	}
}

func TestGPUs(t *testing.T) {
	if got := JobsOf([]corev1.Pod{pod("p", "n1", 2)}, []string{"amd.com/gpu"})["kubernetes-team.p"].Nodes["n1"]; got != 0 {
		t.Errorf("%d GPUs of another resource, want 0", got)
	}
	limited := pod("p", "n1", 0, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpuResource: resource.MustParse("4")}}
	})
	if got := GPUsOf(&limited.Spec, gpuResources); got != 4 {
		t.Errorf("%d GPUs of a limit, want 4", got)
	}
	// An initial container has its GPUs before the others have theirs.
	initial := pod("p", "n1", 2, func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "prepare", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpuResource: resource.MustParse("3")}}}}
	})
	if got := JobsOf([]corev1.Pod{initial}, gpuResources)["kubernetes-team.p"].Nodes["n1"]; got != 3 {
		t.Errorf("%d GPUs, want 3", got)
	}
}

func TestUser(t *testing.T) {
	own := func(user int64) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
				Name: "other", SecurityContext: &corev1.SecurityContext{RunAsUser: &user}})
		}
	}
	mapped := func(pod *corev1.Pod) { hostUsers := false; pod.Spec.HostUsers = &hostUsers }
	for _, c := range []struct {
		name  string
		pod   corev1.Pod
		known bool
	}{
		{"not said", pod("p", "n1", 1), false},
		{"said for the pod", pod("p", "n1", 1, withUser(7)), true},
		{"containers agree", pod("p", "n1", 1, withUser(7), own(7)), true},
		{"containers differ", pod("p", "n1", 1, withUser(7), own(8)), false},
		{"uids are mapped", pod("p", "n1", 1, withUser(7), mapped), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			user := JobsOf([]corev1.Pod{c.pod}, gpuResources)["kubernetes-team.p"].User
			if (user != nil) != c.known || (user != nil && *user != 7) {
				t.Errorf("the user is %v", user)
			}
		})
	}
}

func TestOnlyPodsWithADatasetStartAComparison(t *testing.T) {
	with := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{DatasetLabel: "images"}}}
	without := &corev1.Pod{}
	for _, c := range []struct {
		name string
		got  bool
		want bool
	}{
		{"created", followed.Create(event.CreateEvent{Object: with}), true},
		{"of others created", followed.Create(event.CreateEvent{Object: without}), false},
		{"changed", followed.Update(event.UpdateEvent{ObjectOld: with, ObjectNew: with}), true},
		{"label removed", followed.Update(event.UpdateEvent{ObjectOld: with, ObjectNew: without}), true},
		{"of others changed", followed.Update(event.UpdateEvent{ObjectOld: without, ObjectNew: without}), false},
		{"deleted", followed.Delete(event.DeleteEvent{Object: with}), true},
		{"of others deleted", followed.Delete(event.DeleteEvent{Object: without}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}
