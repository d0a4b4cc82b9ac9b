package place

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

var (
	four      = []Slot{{"n1", 8}, {"n2", 8}, {"n3", 8}, {"n4", 8}}
	fourReady = Nodes{"n1": NodeBack, "n2": NodeBack, "n3": NodeBack, "n4": NodeBack}
)

// elasticGang makes a Job of 1 to 4 pods with its gated pods.
func elasticGang(pods int) *Gang {
	gang := gatedGang(pods)
	job := gang.Jobs[0]
	job.Work.Elastic, job.Size, job.HasIndexes = Elastic{1, 4}, pods, true
	for i, pod := range gang.Pods {
		pod.Index = i
	}
	return gang
}

// scaled is what the API server does after a step that changes the Job's size, before any pod comes or goes.
func scaled(t *testing.T, gang *Gang, attempt *Attempt, decision Decision) {
	t.Helper()
	for _, step := range decision.Steps {
		if step.Kind != ScaleJob {
			t.Fatalf("there is another step: %s", text(decision))
		}
		job := *step.Job
		job.Pods, job.Left = step.Size, step.Size
		job.Attempt, job.Plan, job.Resize = attempt.Key, attempt.Plan[:step.Size], step.Resize
		gang.Jobs[0] = &job
	}
}

// add makes the pod of an index, behind its gate.
func add(gang *Gang, index int, name string) *Pod {
	pod := gatedPod(name)
	pod.Index = index
	gang.Pods = append(gang.Pods, pod)
	return pod
}

func remove(gang *Gang, name string) {
	for i, pod := range gang.Pods {
		if pod.Name == name {
			gang.Pods = append(gang.Pods[:i:i], gang.Pods[i+1:]...)
			return
		}
	}
}

// runs makes an elastic gang of so many pods run, and the allocator know that.
func runs(t *testing.T, pods int) (*Gang, *Attempt) {
	t.Helper()
	gang, attempt := elasticGang(pods), NewAttempt(first, four[:pods])
	run(gang, attempt)
	expect(t, told(gang, attempt, fourReady), "! started")
	return gang, attempt
}

func expectTold(t *testing.T, attempt *Attempt, kind string, resize int64) {
	t.Helper()
	if attempt.told.Kind != kind || attempt.told.Resize != resize {
		t.Fatalf("the allocator was told %s %d, want %s %d", attempt.told.Kind, attempt.told.Resize, kind, resize)
	}
}

func TestElasticGangLosesItsLastPods(t *testing.T) {
	gang, attempt := runs(t, 3)
	attempt.takeResize(1, four[:1], gang)
	decision := Decide(gang, attempt, fourReady)
	expect(t, decision, "scale train 1")
	scaled(t, gang, attempt, decision)
	for _, pod := range gang.Pods[1:] {
		expect(t, told(gang, attempt, fourReady), "")
		pod.Deleting = true
	}
	remove(gang, "train-2")
	gang.Pods[1].Phase, gang.Pods[1].ExitCode = corev1.PodFailed, 143
	expect(t, told(gang, attempt, fourReady), "")
	remove(gang, "train-1")
	decision = told(gang, attempt, fourReady)
	expect(t, decision, "scale train 1") // The end of the resize goes on record first.
	scaled(t, gang, attempt, decision)
	expect(t, told(gang, attempt, fourReady), "! resized")
	expectTold(t, attempt, "resized", 1)
	expect(t, told(gang, attempt, fourReady), "")
}

func TestElasticGangGetsMorePods(t *testing.T) {
	gang, attempt := runs(t, 2)
	attempt.takeResize(1, four, gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	add(gang, 3, "late")
	put(add(gang, 2, "deleted"), attempt, 2)
	told(gang, attempt, fourReady)
	gang.Pods[3].Deleting = true
	expect(t, told(gang, attempt, fourReady), "place late 3")
	remove(gang, "deleted")
	add(gang, 2, "early")
	decision := told(gang, attempt, fourReady)
	expect(t, decision, "place late 3 place early 2")
	put(gang.Pods[2], attempt, 3)
	put(gang.Pods[3], attempt, 2)
	gang.Pods[3].Phase = corev1.PodPending
	expect(t, told(gang, attempt, fourReady), "")
	gang.Pods[3].Phase = corev1.PodRunning
	decision = told(gang, attempt, fourReady)
	expect(t, decision, "scale train 4")
	scaled(t, gang, attempt, decision)
	expect(t, told(gang, attempt, fourReady), "! resized")
	expectTold(t, attempt, "resized", 1)
}

func TestElasticGangBeginsWithThePodsOfItsPlan(t *testing.T) {
	for _, planned := range []int{1, 4} {
		gang, attempt := elasticGang(2), NewAttempt(first, four[:planned])
		decision := Decide(gang, attempt, fourReady)
		expect(t, decision, fmt.Sprintf("scale train %d", planned))
		scaled(t, gang, attempt, decision)
		if planned == 1 {
			gang.Pods[1].Deleting = true
			expect(t, Decide(gang, attempt, fourReady), "place train-0 0")
			continue
		}
		expect(t, Decide(gang, attempt, fourReady), "")
		add(gang, 2, "train-2")
		add(gang, 3, "train-3")
		expect(t, Decide(gang, attempt, fourReady), "place train-0 0 place train-1 1 place train-2 2 place train-3 3")
	}
}

func TestPodOfAnElasticGangGetsNoOtherRankThanItsIndex(t *testing.T) {
	gang, attempt := runs(t, 2)
	remove(gang, "train-1")
	attempt.pods[1] = ""
	add(gang, 3, "stray")
	expect(t, told(gang, attempt, fourReady), "")
	add(gang, 1, "again")
	expect(t, told(gang, attempt, fourReady), "place again 1")
}

func TestSizeThatSomebodyElseChangesIsSetBack(t *testing.T) {
	gang, attempt := runs(t, 2)
	gang.Jobs[0].Pods, gang.Jobs[0].Left = 3, 3
	decision := told(gang, attempt, fourReady)
	expect(t, decision, "scale train 2")
	scaled(t, gang, attempt, decision)
	gang.Jobs[0].HasIndexes = false // as with more completions than pods
	expect(t, told(gang, attempt, fourReady), "scale train 2")
}

func TestResizesThatAreRefused(t *testing.T) {
	gang, attempt := runs(t, 2)
	attempt.takeResize(1, []Slot{{"n2", 8}}, gang)
	expect(t, told(gang, attempt, fourReady), "! resize_refused")
	expectTold(t, attempt, "resize_refused", 1)
	attempt.takeResize(2, []Slot{{"n1", 8}, {"n3", 8}}, gang)
	expect(t, told(gang, attempt, fourReady), "! resize_refused")
	gang.Jobs[0].Work.Elastic = Elastic{}
	attempt.takeResize(3, four[:1], gang)
	expect(t, told(gang, attempt, fourReady), "! resize_refused")
	gang.Jobs[0].Work.Elastic = Elastic{1, 4}
	gang.Pods[0].Phase = corev1.PodSucceeded
	attempt.takeResize(4, four, gang)
	expect(t, told(gang, attempt, fourReady), "! resize_refused")
	expectTold(t, attempt, "resize_refused", 4)
	if len(attempt.Plan) != 2 {
		t.Errorf("the plan is %v", attempt.Plan)
	}
}

func TestGrowthOfAGangThatEndsIsGivenUp(t *testing.T) {
	gang, attempt := runs(t, 1)
	attempt.takeResize(1, four[:2], gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	add(gang, 1, "more")
	gang.Pods[0].Phase = corev1.PodSucceeded
	decision := told(gang, attempt, fourReady)
	expect(t, decision, "scale train 1 ! resize_refused")
	scaled(t, gang, attempt, decision)
	attempt.takeResize(2, four[:1], gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	told(gang, attempt, fourReady)
	expectTold(t, attempt, "resized", 2)
}

func TestSizeThatTheAPIServerRefusesRefusesTheResize(t *testing.T) {
	gang, attempt := runs(t, 1)
	attempt.takeResize(1, four[:2], gang)
	expect(t, told(gang, attempt, fourReady), "scale train 2")
	attempt.refuseScale("spec.completions: Invalid value")
	expect(t, told(gang, attempt, fourReady), "! resize_refused")
	expect(t, told(gang, attempt, fourReady), "")
	begins := NewAttempt(second, four[:3])
	expect(t, Decide(elasticGang(2), begins, fourReady), "scale train 3")
	begins.refuseScale("spec.completions: Invalid value")
	expect(t, Decide(elasticGang(2), begins, fourReady), "! rejected")
}

func TestGrowthWaitsUntilThePodsBeforeHaveLeft(t *testing.T) {
	gang, attempt := runs(t, 2)
	attempt.takeResize(1, four[:1], gang)
	attempt.takeResize(2, []Slot{{"n1", 8}, {"n3", 8}}, gang)
	decision := told(gang, attempt, fourReady)
	expect(t, decision, "scale train 1")
	if decision.Steps[0].Resize.Wanted != 0 {
		t.Errorf("the Job's note is %v, and the allocator would not repeat the resize", decision.Steps[0].Resize)
	}
	scaled(t, gang, attempt, decision)
	gang.Pods[1].Deleting = true
	expect(t, told(gang, attempt, fourReady), "")
	remove(gang, "train-1")
	decision = told(gang, attempt, fourReady)
	expect(t, decision, "scale train 2")
	scaled(t, gang, attempt, decision)
	add(gang, 1, "again")
	expect(t, told(gang, attempt, fourReady), "place again 1")
}

func TestNodeLostDuringAResizeDoesNotEndTheAttempt(t *testing.T) {
	lost := Nodes{"n1": NodeBack, "n2": NodeLost}
	gang, attempt := runs(t, 1)
	attempt.takeResize(1, four[:2], gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	put(add(gang, 1, "more"), attempt, 1)
	gang.Pods[1].Phase = corev1.PodPending
	expect(t, told(gang, attempt, lost), "")
	attempt.takeResize(2, four[:1], gang)
	scaled(t, gang, attempt, told(gang, attempt, lost))
	gang.Pods[1].Deleting = true
	scaled(t, gang, attempt, told(gang, attempt, lost))
	told(gang, attempt, lost)
	expectTold(t, attempt, "resized", 2)

	gang, attempt = runs(t, 2)
	expect(t, told(gang, attempt, lost), "suspend train")
}

func TestResizeGoesOnAfterARestart(t *testing.T) {
	for _, planned := range []int{1, 3} {
		gang, before := runs(t, 2)
		before.takeResize(1, four[:planned], gang)
		scaled(t, gang, before, told(gang, before, fourReady))
		attempt := Restore(gang, "q-1", 7)
		event := attempt.LastEvent(gang, fourReady)
		if event.Kind != "started" || event.Resize != 0 || len(attempt.Plan) != planned {
			t.Fatalf("the attempt has %v, and its last event is %v", attempt.Plan, event)
		}
		attempt.Told(event)
		if planned == 1 {
			gang.Pods[1].Deleting = true
			expect(t, told(gang, attempt, fourReady), "")
			remove(gang, "train-1")
		} else {
			put(add(gang, 2, "more"), attempt, 2)
		}
		scaled(t, gang, attempt, told(gang, attempt, fourReady))
		expect(t, told(gang, attempt, fourReady), "! resized")
		again := Restore(gang, "q-1", 7).LastEvent(gang, fourReady)
		if again.Kind != "started" || again.Resize != 1 {
			t.Errorf("the last event is %v", again)
		}
	}
}

func TestAttemptThatIsStoppedDuringAResizeEndsAllItsPods(t *testing.T) {
	gang, attempt := runs(t, 2)
	attempt.takeResize(1, four[:1], gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	attempt.Undo = &Undo{Stopped, "preempted"}
	expect(t, told(gang, attempt, fourReady), "suspend train")
	gang.Jobs[0].Suspended, gang.Jobs[0].ByUs = true, &Suspension{Key: first, Reason: Stopped, Message: "x"}
	remove(gang, "train-0")
	expect(t, told(gang, attempt, fourReady), "")
	remove(gang, "train-1")
	expect(t, told(gang, attempt, fourReady), "! ended 0 stopping")
	again := NewAttempt(second, four[:3])
	decision := Decide(gang, again, fourReady)
	expect(t, decision, "resume train 3")
}

func TestPodThatLeavesDoesNotCountForTheEnd(t *testing.T) {
	gang, attempt := runs(t, 2)
	attempt.takeResize(1, four[:1], gang)
	scaled(t, gang, attempt, told(gang, attempt, fourReady))
	gang.Pods[1].Deleting = true
	gang.Pods[0].Phase = corev1.PodFailed
	gang.Pods[0].ExitCode = 3
	gang.Jobs[0].Failed = true
	expect(t, told(gang, attempt, fourReady), "")
	gang.Pods[1].Phase, gang.Pods[1].ExitCode = corev1.PodFailed, 143
	expect(t, told(gang, attempt, fourReady), "")
	gang.Pods[1].Deleting = false // It had ended before.
	expect(t, told(gang, attempt, fourReady), "! ended 3")
}

func rawElasticJob(change func(*batchv1.Job)) *batchv1.Job {
	pods, mode := int32(2), batchv1.IndexedCompletion
	limits := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job", Labels: map[string]string{}},
		Spec:       batchv1.JobSpec{Parallelism: &pods, Completions: &pods, CompletionMode: &mode},
	}
	job.Spec.Template.Annotations = map[string]string{elasticAnnotation: "1-3"}
	job.Spec.Template.Spec = corev1.PodSpec{
		SchedulingGates: []corev1.PodSchedulingGate{{Name: Gate}},
		Containers:      []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}},
	}
	if change != nil {
		change(job)
	}
	return job
}

func submissionOf(job *batchv1.Job) (allocator.Submission, error) {
	made := jobOf(job, []string{"nvidia.com/gpu"})
	return (&Gang{ID: made.Gang, Jobs: []*Job{made}}).submission("team")
}

func TestElasticJobIsSubmittedWithItsRange(t *testing.T) {
	made, err := submissionOf(rawElasticJob(nil))
	if err != nil || !made.Elastic || made.GPUs != 8 || made.GPUsMin != 4 || made.GPUsMax != 12 || len(made.Pods) != 2 {
		t.Errorf("submitted %+v, %v", made, err)
	}
	// Larder has made the Job smaller.
	one := int32(1)
	made, err = submissionOf(rawElasticJob(func(job *batchv1.Job) {
		job.Spec.Parallelism, job.Spec.Completions = &one, &one
		job.Annotations = map[string]string{sizeAnnotation: "2"}
	}))
	if err != nil || made.GPUs != 8 {
		t.Errorf("submitted %+v, %v", made, err)
	}
	rigid, err := submissionOf(rawElasticJob(func(job *batchv1.Job) { job.Spec.Template.Annotations = nil }))
	if err != nil || rigid.Elastic || rigid.GPUsMax != 0 {
		t.Errorf("submitted %+v, %v", rigid, err)
	}
}

func TestJobsThatCannotBeElasticAreRefused(t *testing.T) {
	three := int32(3)
	annotate := func(text string) func(*batchv1.Job) {
		return func(job *batchv1.Job) { job.Spec.Template.Annotations[elasticAnnotation] = text }
	}
	for _, test := range []struct {
		change func(*batchv1.Job)
		why    string
	}{
		{annotate(""), "must be a range of pods"},
		{annotate("yes"), "must be a range of pods"},
		{annotate("2"), "must be a range of pods"},
		{annotate("3-1"), "must be a range of pods"},
		{annotate("2-2"), "must be a range of pods"},
		{annotate("0-4"), "must be a range of pods"},
		{annotate("1-257"), "must be a range of pods"},
		{annotate("3-4"), "the Job has 2 pods"},
		{func(job *batchv1.Job) { job.Spec.CompletionMode = nil }, "completionMode Indexed"},
		{func(job *batchv1.Job) { job.Spec.Completions = &three }, "as many completions as parallelism"},
		{func(job *batchv1.Job) { job.Spec.Template.Annotations[gangSizeAnnotation] = "2" }, "a gang of its own"},
		{func(job *batchv1.Job) { job.Labels[kueueQueueLabel] = "training" }, "not for Jobs in a queue of Kueue"},
	} {
		if _, err := submissionOf(rawElasticJob(test.change)); err == nil || !strings.Contains(err.Error(), test.why) {
			t.Errorf("the error is %v, want %q", err, test.why)
		}
	}
	gang := elasticGang(2)
	gang.Jobs = append(gang.Jobs, &Job{Name: "other", UID: "other", Pods: 1, Size: 1, Work: Work{GPUs: 8}})
	if _, err := gang.sizes(); err == nil || !strings.Contains(err.Error(), "a gang of its own") {
		t.Errorf("the error is %v", err)
	}
	alone := gatedPod("alone")
	alone.HasOwner, alone.Work.Elastic = false, Elastic{1, 2}
	if _, err := (&Gang{ID: GangID{"team", "alone"}, Pods: []*Pod{alone}}).sizes(); err == nil {
		t.Error("a pod without a Job is elastic")
	}
}

func TestResizeActionIsTakenOnce(t *testing.T) {
	agent, api := newTestAgent()
	job := rawElasticJob(nil)
	agent.store.take(job, false)
	id := GangID{"team", "train"}
	ctx := context.Background()
	if err := agent.mirror.sync(ctx, []GangID{id}, func(GangID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if err := agent.attach(ctx); err != nil || !api.attached.Resizes {
		t.Fatalf("attached with %+v, %v", api.attached, err)
	}
	number := agent.mirror.known[id].id
	take := func(do string, resize int64, nodes ...string) *Attempt {
		action := allocator.EngineAction{Do: do, Queue: fakeQueueID, Job: number, Attempt: 1, Resize: resize,
			Parameters: api.jobs[id.jobName()].EngineParameters}
		for _, node := range nodes {
			action.Tasks = append(action.Tasks, allocator.EngineTask{Node: node, GPUs: []int64{0, 1, 2, 3}})
		}
		if events := agent.take([]allocator.EngineAction{action}); len(events) != 0 {
			t.Fatalf("the events are %v", events)
		}
		return agent.attempts[id]
	}
	take("start", 0, "n1", "n2")
	if attempt := take("resize", 1, "n1"); len(attempt.Plan) != 1 || attempt.resize.Wanted != 1 {
		t.Errorf("the attempt is %+v", attempt)
	}
	if attempt := take("resize", 1, "n1", "n2"); len(attempt.Plan) != 1 {
		t.Errorf("the plan is %v", attempt.Plan)
	}
	if attempt := take("resize", 2, "n1", "n2", "n3", "n4"); attempt.refused == nil || len(attempt.Plan) != 1 {
		t.Errorf("the plan of 4 of 3 pods is taken: %v", attempt.Plan)
	}
	agent.take([]allocator.EngineAction{{Do: "resize", Queue: "other", Job: number, Attempt: 1, Resize: 9}})
	if _, known := agent.byKey[Key{number, 1, "other"}]; known {
		t.Error("an attempt that is not here is resized")
	}
}

func TestNotesOfResizesThatUsersForgeAreNone(t *testing.T) {
	for _, text := range []string{"", "1", "1 0", "0 1 2", "1 -1 2", "1 0 0", "a b c"} {
		if got := parseResize(text); got != (Resize{}) {
			t.Errorf("%q is %v", text, got)
		}
	}
	note := Resize{Wanted: 3, Done: 2, Pods: 4}
	if got := parseResize(note.String()); got != note {
		t.Errorf("%v is %v", note, got)
	}
}
