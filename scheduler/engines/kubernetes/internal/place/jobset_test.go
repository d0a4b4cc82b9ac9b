package place

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

const gatedTemplate = `{"metadata": {"labels": {"larder.io/dataset": "images"}}, "spec": {"terminationGracePeriodSeconds": %d,
	"schedulingGates": [{"name": "larder.io/placement"}],
	"containers": [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": "%d"}}}]}}`

// replicated makes a ReplicatedJob with so many Jobs, of so many pods with 2 or 8 GPUs.
func replicated(name string, jobs, pods, gpus int) string {
	template := fmt.Sprintf(gatedTemplate, gpus*10, gpus)
	return fmt.Sprintf(`{"name": %q, "replicas": %d, "template": {"spec": {"parallelism": %d, "completions": %d,
		"completionMode": "Indexed", "template": %s}}}`, name, jobs, pods, pods, template)
}

func rawSet(t *testing.T, spec string, parts ...string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": {"namespace": "team", "name": "train", "uid": "set"},
		"spec": {%s "replicatedJobs": [%s]}}`, spec, strings.Join(parts, ","))
	object := newJobSet()
	if err := json.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return object
}

// rawJobOfSet makes a Job of the JobSet "train".
func rawJobOfSet(part string, index, pods int, restart string) *batchv1.Job {
	count, isController := int32(pods), true
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: fmt.Sprintf("train-%s-%d", part, index),
		UID: types.UID(fmt.Sprintf("%s-%d.%s", part, index, restart)),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "train", UID: "set", Controller: &isController,
		}},
	}}
	job.Spec.Parallelism, job.Spec.Completions = &count, &count
	job.Spec.Template.Labels = setLabels(part, index, restart)
	job.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: Gate}}
	return job
}

func setLabels(part string, index int, restart string) map[string]string {
	return map[string]string{
		follow.JobSetLabel: "train", setUIDLabel: "set", replicatedJobLabel: part, jobIndexLabel: fmt.Sprint(index), restartLabel: restart,
	}
}

func podOfSet(part string, jobIndex, index int, restart string) *corev1.Pod {
	isController := true
	name := fmt.Sprintf("train-%s-%d-%d.%s", part, jobIndex, index, restart)
	pod := rawPod("team", name, name)
	pod.Labels = setLabels(part, jobIndex, restart)
	pod.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: fmt.Sprint(index)}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", UID: "job", Controller: &isController}}
	return pod
}

func storeOf(objects ...any) *store {
	made := newStore([]string{"nvidia.com/gpu"})
	for _, object := range objects {
		made.take(object, false)
	}
	return made
}

var trainSet = GangID{"team", "train"}

func TestJobSetIsOneGang(t *testing.T) {
	gang := storeOf(rawSet(t, "", replicated("head", 1, 1, 8), replicated("workers", 2, 3, 2)),
		rawJobOfSet("workers", 0, 3, "0"), podOfSet("workers", 1, 2, "0")).get(trainSet)
	sizes, err := gang.sizes()
	if want := []int64{8, 2, 2, 2, 2, 2, 2}; err != nil || !slices.Equal(sizes, want) {
		t.Errorf("the pods have %v GPUs, want %v: %v", sizes, want, err)
	}
	submission, err := gang.submission("team")
	if err != nil || submission.Name != "kubernetes-team.train" || submission.GPUs != 20 || submission.GraceS != 80 ||
		submission.Dataset != "images" || !submission.Preemptible || submission.EngineParameters[uidParameter] != "set" {
		t.Errorf("submitted %+v: %v", submission, err)
	}
	if pod := gang.Pods[0]; pod.Owner != "set" || pod.Index != 6 {
		t.Errorf("the last pod has the owner %q and the index %d", pod.Owner, pod.Index)
	}
}

func TestPodsOfAJobSetWithoutTheGateAreNotPlaced(t *testing.T) {
	plain := strings.ReplaceAll(replicated("driver", 1, 1, 8), Gate, "other")
	if gang := storeOf(rawSet(t, "", plain)).get(trainSet); len(gang.Jobs) != 0 {
		t.Error("no pod of this JobSet is Larder's")
	}
	gang := storeOf(rawSet(t, "", plain, replicated("workers", 2, 1, 8))).get(trainSet)
	if sizes, err := gang.sizes(); err != nil || len(sizes) != 2 {
		t.Errorf("%d pods are placed: %v", len(sizes), err)
	}
}

func TestJobSetsThatCannotBePlacedSayWhy(t *testing.T) {
	labelled := func(part, gang string) string {
		return strings.ReplaceAll(part, `"larder.io/dataset"`, `"larder.io/gang": "`+gang+`", "larder.io/dataset"`)
	}
	elastic := strings.ReplaceAll(replicated("a", 1, 2, 8), `{"labels"`, `{"annotations": {"larder.io/elastic": "1-4"}, "labels"`)
	for name, c := range map[string]struct {
		parts []string
		want  string
	}{
		"several gangs": {[]string{labelled(replicated("a", 1, 1, 8), "x"), labelled(replicated("b", 1, 1, 8), "y")}, "several values"},
		"elastic":       {[]string{elastic}, "not for JobSets"},
		"no GPU":        {[]string{replicated("a", 1, 1, 8), replicated("b", 1, 1, 0)}, "no GPU"},
		"too many pods": {[]string{replicated("a", math.MaxInt32, math.MaxInt32, 8)}, "more than 256"},
		"too many jobs": {[]string{replicated("a", 200, 1, 8), replicated("b", 100, 1, 8)}, "more than 256"},
		"no pods":       {[]string{replicated("a", 0, 1, 8)}, "no pods"},
	} {
		t.Run(name, func(t *testing.T) {
			made := storeOf(rawSet(t, "", c.parts...))
			for _, id := range made.all() {
				if _, err := made.get(id).sizes(); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("the error is %v", err)
				}
			}
			if len(made.all()) != 1 {
				t.Errorf("%d gangs", len(made.all()))
			}
		})
	}
}

func TestJobSetOfManyPartsIsNotCountedToItsEnd(t *testing.T) {
	set := Job{Parts: slices.Repeat([]Part{{Jobs: 200, Pods: 1, GPUs: 8}}, 1000)}
	if gpus := set.podGPUs(); len(gpus) <= podsMax || len(gpus) > 2*podsMax {
		t.Errorf("%d pods are counted", len(gpus))
	}
}

func TestSuspensionOfAJobSetCountsAndNotThatOfItsJobs(t *testing.T) {
	suspended, job := true, rawJobOfSet("a", 0, 1, "0")
	job.Spec.Suspend = &suspended
	if storeOf(rawSet(t, "", replicated("a", 1, 1, 8)), job).get(trainSet).isSuspendedByOthers() {
		t.Error("the JobSet's controller resumes this Job")
	}
	if !storeOf(rawSet(t, `"suspend": true,`, replicated("a", 1, 1, 8)), job).get(trainSet).isSuspendedByOthers() {
		t.Error("the JobSet is suspended")
	}
}

func TestCompletionsOfAJobSetAreThoseOfItsJobs(t *testing.T) {
	done, before := rawJobOfSet("a", 0, 3, "1"), rawJobOfSet("a", 1, 3, "0")
	done.Status.Succeeded = 2
	before.Status.Succeeded = 3
	set := rawSet(t, "", replicated("a", 2, 3, 8))
	if err := unstructured.SetNestedField(set.Object, int64(1), "status", "restarts"); err != nil {
		t.Fatal(err)
	}
	if needs := storeOf(set, done, before).get(trainSet).needs(6); needs != 4 {
		t.Errorf("it needs %d pods, want 4: two of this start have succeeded", needs)
	}
}

func TestJobSetOfTheSameNameIsAnotherGang(t *testing.T) {
	before, _, job := placedSet(t)
	set(job, batchv1.JobComplete)
	before.take(job, false)
	before.take(rawSet(t, "", replicated("a", 2, 1, 8)), true)
	again := rawSet(t, "", replicated("a", 2, 1, 8))
	again.SetUID("another")
	before.take(again, false)
	gang := before.get(trainSet)
	if gang.isOf(mirrored{first.Job, "set", first.Queue}) {
		t.Error("it takes the job of the JobSet before, whose pods are still there")
	}
	if needs := gang.needs(2); needs != 2 {
		t.Errorf("it needs %d pods, want 2", needs)
	}
}

func TestPodsOfAnOlderControllerOfJobSetsAreKnownByTheName(t *testing.T) {
	pod := podOfSet("a", 1, 0, "0")
	delete(pod.Labels, setUIDLabel)
	if gang := storeOf(rawSet(t, "", replicated("a", 2, 1, 8)), pod).get(trainSet); gang.Pods[0].Owner != "set" {
		t.Errorf("the pod has the owner %q", gang.Pods[0].Owner)
	}
}

func TestJobSetThatIsUnknownIsNoGang(t *testing.T) {
	made := storeOf(rawJobOfSet("a", 0, 1, "0"), podOfSet("a", 0, 0, "0"))
	if gang := made.get(trainSet); gang.isPresent() || !gang.isGone() {
		t.Error("the size of a JobSet is known from itself alone")
	}
	select {
	case <-made.hasJobSets:
	default:
		t.Error("nobody is told that there are JobSets")
	}
}

// setGang makes a JobSet of two Jobs of one pod, which run in an attempt.
func setGang() (*Gang, *Attempt) {
	gang, attempt := gatedGang(2), twoNodes(first)
	gang.Jobs[0].Parts = []Part{{Name: "a", Jobs: 2, Pods: 1, GPUs: 8}}
	gang.Jobs[0].Attempt = attempt.Key
	run(gang, attempt)
	return gang, attempt
}

func TestJobSetThatBeginsAnewKeepsItsPlaces(t *testing.T) {
	gang, attempt := setGang()
	expect(t, told(gang, attempt, ready), "! started")
	// One pod has failed, and the JobSet's controller deletes both.
	gang.Jobs[0].Member.Restarts = 1
	gang.Pods[1].Deleting, gang.Pods[1].IsOld, gang.Pods[1].MayGo = true, true, true
	gang.Pods = gang.Pods[1:]
	expect(t, told(gang, attempt, ready), "")
	gang.Pods = []*Pod{gatedPod("again-0")}
	expect(t, told(gang, attempt, ready), "")
	gang.Pods = append(gang.Pods, gatedPod("again-1"))
	expect(t, told(gang, attempt, ready), "place again-0 0 place again-1 1")
	run(gang, attempt)
	// A pod of this start that somebody deletes is missed.
	expect(t, told(gang, attempt, ready), "")
	gang.Pods = nil
	expect(t, Decide(gang, attempt, ready), "suspend train")
}

// placedSet makes a JobSet of two Jobs of one pod, whose pods run in an attempt, and the Job of the first pod.
func placedSet(t *testing.T) (*store, *Attempt, *batchv1.Job) {
	t.Helper()
	attempt := twoNodes(first)
	ended := rawJobOfSet("a", 0, 1, "0")
	made := storeOf(rawSet(t, "", replicated("a", 2, 1, 8)), ended)
	for rank := range attempt.Plan {
		pod := podOfSet("a", rank, 0, "0")
		pod.OwnerReferences[0].UID = ended.UID
		if rank > 0 {
			pod.OwnerReferences[0].UID = "other"
		}
		runRaw(pod, attempt, rank)
		made.take(pod, false)
	}
	expect(t, told(made.get(trainSet), attempt, ready), "! started")
	return made, attempt, ended
}

// runRaw is put for a pod as the API server has it.
func runRaw(pod *corev1.Pod, attempt *Attempt, rank int) {
	pod.Annotations[attemptAnnotation], pod.Annotations[planAnnotation] = attempt.Key.String(), formatPlan(attempt.Plan)
	pod.Annotations[rankAnnotation] = fmt.Sprint(rank)
	pod.Spec.SchedulingGates, pod.Spec.NodeName, pod.Status.Phase = nil, attempt.Plan[rank].Node, corev1.PodRunning
}

func TestJobSetGoesOnWhenAJobOfItDeletesItsPods(t *testing.T) {
	deletes := map[string]func(*batchv1.Job){
		"success": func(job *batchv1.Job) { set(job, batchv1.JobSuccessCriteriaMet) },
		"success that was seen late": func(job *batchv1.Job) {
			set(job, batchv1.JobSuccessCriteriaMet)
			set(job, batchv1.JobComplete)
		},
		"failure":  func(job *batchv1.Job) { set(job, batchv1.JobFailureTarget) },
		"deletion": func(job *batchv1.Job) { job.DeletionTimestamp = &metav1.Time{} },
	}
	for name, end := range deletes {
		t.Run(name, func(t *testing.T) {
			made, attempt, job := placedSet(t)
			end(job)
			made.take(job, false)
			pod := podOfSet("a", 0, 0, "0")
			pod.OwnerReferences[0].UID, pod.DeletionTimestamp = job.UID, &metav1.Time{}
			runRaw(pod, attempt, 0)
			made.take(pod, false)
			expect(t, told(made.get(trainSet), attempt, ready), "")
			made.take(pod, true)
			expect(t, told(made.get(trainSet), attempt, ready), "")
			other := podOfSet("a", 1, 0, "0")
			other.DeletionTimestamp = &metav1.Time{}
			runRaw(other, attempt, 1)
			made.take(other, false)
			// While a Job is about to end, pods of the gang may go.
			if name == "success" || name == "failure" {
				expect(t, told(made.get(trainSet), attempt, ready), "")
			} else {
				expect(t, told(made.get(trainSet), attempt, ready), "suspend train")
			}
		})
	}
}

func set(job *batchv1.Job, condition batchv1.JobConditionType) {
	job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue})
}

func TestJobSetThatBeginsAnewDoesNotWaitForACordonedNode(t *testing.T) {
	gang, attempt := setGang()
	expect(t, told(gang, attempt, ready), "! started")
	cordoned := Nodes{"n1": NodeBack, "n2": NodeDrained}
	expect(t, told(gang, attempt, cordoned), "")
	gang.Jobs[0].Member.Restarts = 1
	gang.Pods = []*Pod{gatedPod("again-0"), gatedPod("again-1")}
	expect(t, told(gang, attempt, cordoned), "suspend train")
}

func restarted(t *testing.T, set *unstructured.Unstructured, restarts int64) *unstructured.Unstructured {
	t.Helper()
	if err := unstructured.SetNestedField(set.Object, restarts, "status", "restarts"); err != nil {
		t.Fatal(err)
	}
	return set
}

func gated8(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("8")
	return pod
}

func TestPodsThatAJobSetReplacesGetNoPlaces(t *testing.T) {
	made := storeOf(restarted(t, rawSet(t, "", replicated("a", 2, 1, 8)), 1),
		gated8(podOfSet("a", 0, 0, "0")), gated8(podOfSet("a", 1, 0, "0")), gated8(podOfSet("a", 0, 0, "1")))
	attempt := twoNodes(first)
	expect(t, told(made.get(trainSet), attempt, ready), "")
	made.take(gated8(podOfSet("a", 1, 0, "1")), false)
	expect(t, told(made.get(trainSet), attempt, ready), "note train place train-a-0-0.1 0 place train-a-1-0.1 1")
}

func TestPodsThatHaveEndedBeforeDoNotCountWhenAJobSetBeginsAnew(t *testing.T) {
	made, attempt := storeOf(rawSet(t, "", replicated("a", 2, 1, 8))), twoNodes(first)
	failed := podOfSet("a", 0, 0, "0")
	runRaw(failed, attempt, 0)
	failed.Status.Phase = corev1.PodFailed
	made.take(failed, false)
	expect(t, told(made.get(trainSet), attempt, ready), "")
	made.take(restarted(t, rawSet(t, "", replicated("a", 2, 1, 8)), 1), false)
	again := podOfSet("a", 1, 0, "1")
	runRaw(again, attempt, 1)
	made.take(again, false)
	expect(t, told(made.get(trainSet), attempt, ready), "")
}

func TestAnotherControllerFindsTheAttemptOfAJobSetThatHasNoPods(t *testing.T) {
	set, attempt := rawSet(t, "", replicated("a", 2, 1, 8)), twoNodes(first)
	to := &cluster{fake.NewClientBuilder().WithObjects(set).Build()}
	for _, step := range attempt.notes(storeOf(set).get(trainSet)) {
		if err := to.carryOut(t.Context(), step, attempt); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
		t.Fatal(err)
	}
	gang := storeOf(set).get(trainSet)
	restored := Restore(gang, first.Queue, first.Job)
	if restored == nil || restored.Key != first || !slices.Equal(restored.Plan, attempt.Plan) {
		t.Fatalf("it finds %+v", restored)
	}
	if more := restored.notes(gang); len(more) > 0 {
		t.Error("it notes the attempt again")
	}
}

func TestOneOfTwoJobSetsOfAGangBeginsAnew(t *testing.T) {
	const label = `{"labels": {"larder.io/gang": "both", `
	setOf := func(name string, restarts int64) *unstructured.Unstructured {
		made := rawSet(t, "", strings.ReplaceAll(replicated("a", 1, 1, 8), `{"labels": {`, label))
		made.SetName(name)
		made.SetUID(types.UID(name))
		return restarted(t, made, restarts)
	}
	podOf := func(set, restart string) *corev1.Pod {
		pod := gated8(podOfSet("a", 0, 0, restart))
		pod.Name, pod.UID = set+"."+restart, types.UID(set+"."+restart)
		pod.Labels[follow.GangLabel], pod.Labels[follow.JobSetLabel], pod.Labels[setUIDLabel] = "both", set, set
		return pod
	}
	both, attempt := GangID{"team", "both"}, twoNodes(first)
	made := storeOf(setOf("x", 2), setOf("y", 0), podOf("x", "2"), podOf("y", "0"))
	expect(t, told(made.get(both), attempt, ready), "note x note y place x.2 0 place y.0 1")
	for rank, pod := range []*corev1.Pod{podOf("x", "2"), podOf("y", "0")} {
		runRaw(pod, attempt, rank)
		made.take(pod, false)
	}
	expect(t, told(made.get(both), attempt, ready), "! started")
	made.take(setOf("y", 1), false)
	made.take(podOf("y", "0"), true)
	made.take(podOf("y", "1"), false)
	expect(t, told(made.get(both), attempt, ready), "note x note y place y.1 1")
	made.take(podOf("x", "2"), true)
	expect(t, told(made.get(both), attempt, ready), "suspend x suspend y")
}

func TestOrderedJobSetBeginsWithItsFirstPod(t *testing.T) {
	gang, attempt := setGang()
	last := gang.Pods[1]
	gang.Jobs[0].IsOrdered, gang.Pods = true, []*Pod{gatedPod("train-0")}
	expect(t, told(gang, attempt, ready), "place train-0 0")
	put(gang.Pods[0], attempt, 0)
	expect(t, told(gang, attempt, ready), "! started")
	last.Gated, last.Attempt, last.Rank, last.Node, last.Phase = true, Key{}, -1, "", corev1.PodPending
	gang.Pods = append(gang.Pods, last)
	expect(t, told(gang, attempt, ready), "place train-1 1")
}

func TestFinishedJobSetEndsOnceItsPodsAreGone(t *testing.T) {
	gang, attempt := setGang()
	expect(t, told(gang, attempt, ready), "! started")
	gang.Jobs[0].Complete = true
	gang.Pods[0].Phase = corev1.PodSucceeded
	expect(t, told(gang, attempt, ready), "")
	lost := Nodes{"n1": NodeBack, "n2": NodeLost}
	expect(t, Decide(gang, attempt, lost), "! ended 0")
	gang.Pods = gang.Pods[:1]
	expect(t, told(gang, attempt, ready), "! ended 0")
}
