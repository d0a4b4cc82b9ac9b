package place

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// fakeAPI keeps what an agent tells. It refuses the attempts of one number, as the allocator does.
type fakeAPI struct {
	*fakeQueue
	refused  int64
	attached allocator.EngineState
	reported []string
	// The names of jobs that could start when the agent attached.
	startable []string
}

func (f *fakeAPI) Attach(_ context.Context, state allocator.EngineState) (string, error) {
	for i, event := range state.Attempts {
		if event.Attempt == f.refused {
			message := fmt.Sprintf("attempts[%d]: attempt is too large", i)
			return "", fmt.Errorf("attach: %w", &wire.StatusError{Status: http.StatusBadRequest, Message: message})
		}
	}
	f.attached = state
	for name, job := range f.jobs {
		if !job.HasEnded() {
			f.startable = append(f.startable, name)
		}
	}
	return "s", nil
}

func (f *fakeAPI) Actions(context.Context, string, int64, int) ([]allocator.EngineAction, error) {
	return nil, nil
}

func (f *fakeAPI) Report(_ context.Context, _ string, _ int64, events []allocator.EngineEvent) error {
	for _, event := range events {
		f.reported = append(f.reported, fmt.Sprintf("%s %d.%d", event.Kind, event.Job, event.Attempt))
	}
	return nil
}

func newTestAgent() (*Agent, *fakeAPI) {
	api := &fakeAPI{fakeQueue: &fakeQueue{jobs: make(map[string]*allocator.QueueJob)}, refused: -1}
	agent := NewAgent(api, nil, nil, Options{Name: "a", GPUResources: []string{"nvidia.com/gpu"}})
	for _, name := range []string{"team", "other"} {
		agent.store.take(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	}
	agent.store.take(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, false)
	return agent, api
}

// submitted makes a gang of one pod, which has a job, and returns its ID.
func submitted(t *testing.T, agent *Agent, api *fakeAPI, name string) GangID {
	t.Helper()
	id := GangID{"team", name}
	agent.store.take(rawPod("team", name, name), false)
	if _, err := agent.mirror.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := agent.mirror.sync(context.Background(), []GangID{id}, func(GangID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if agent.mirror.known[id].id == 0 {
		t.Fatalf("%s has no job", id)
	}
	return id
}

// placed makes a pod run in an attempt.
func placed(agent *Agent, namespace, name string, annotations map[string]string) {
	pod := rawPod(namespace, name, name)
	pod.Spec.SchedulingGates, pod.Spec.NodeName, pod.Status.Phase = nil, "n1", corev1.PodRunning
	pod.Annotations = annotations
	agent.store.take(pod, false)
}

func annotationsOf(key string) map[string]string {
	return map[string]string{attemptAnnotation: key, planAnnotation: "n1=2", rankAnnotation: "0"}
}

func TestRestoreIgnoresForgedAttempts(t *testing.T) {
	agent, api := newTestAgent()
	victim := submitted(t, agent, api, "victim")
	thief := submitted(t, agent, api, "thief")
	key := Key{agent.mirror.known[victim].id, 1, fakeQueueID}
	placed(agent, "team", "victim", annotationsOf(key.String()))
	placed(agent, "team", "thief", annotationsOf(key.String()))
	placed(agent, "other", "stranger", annotationsOf(key.String()))
	agent.restore()
	if len(agent.attempts) != 1 || agent.attempts[victim] == nil || agent.byKey[key] != victim {
		t.Fatalf("the attempts are %v, by %v", agent.attempts, agent.byKey)
	}
	for _, id := range []GangID{thief, {"other", "stranger"}} {
		expect(t, Decide(agent.store.get(id), agent.attempts[id], ready), "delete "+id.Name)
	}
}

func TestRestoreIgnoresThePodsThatAFormerGangLeaves(t *testing.T) {
	agent, api := newTestAgent()
	id := submitted(t, agent, api, "a")
	known := agent.mirror.known[id]
	agent.mirror.known[id] = mirrored{known.id, "former", fakeQueueID}
	isController := true
	left := rawPod("team", "a-1", "left")
	left.Annotations = annotationsOf(Key{known.id, 1, fakeQueueID}.String())
	left.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: "a", UID: "former", Controller: &isController}}
	agent.store.take(left, false)
	agent.restore()
	if len(agent.attempts) != 0 {
		t.Errorf("the attempts are %v", agent.attempts)
	}
}

func TestAttemptThatTheAllocatorRefusesIsDropped(t *testing.T) {
	agent, api := newTestAgent()
	for i, name := range []string{"a", "b", "c"} {
		id := submitted(t, agent, api, name)
		key := Key{agent.mirror.known[id].id, int64(i + 1), fakeQueueID}
		placed(agent, "team", name, annotationsOf(key.String()))
	}
	agent.restore()
	api.refused = 2
	if err := agent.attach(context.Background()); !wire.IsStatus(err, http.StatusBadRequest) {
		t.Fatalf("the error is %v", err)
	}
	if err := agent.attach(context.Background()); err != nil || len(api.attached.Attempts) != 2 || len(agent.byKey) != 2 {
		t.Errorf("the agent is attached with %v, %v", api.attached.Attempts, err)
	}
}

func TestNextAttemptThatHasNoPlanIsRejected(t *testing.T) {
	agent, api := newTestAgent()
	id := submitted(t, agent, api, "a")
	job := agent.mirror.known[id].id
	if err := agent.attach(context.Background()); err != nil {
		t.Fatal(err)
	}
	parameters := api.jobs[id.jobName()].EngineParameters
	start := func(attempt int64, gpus int) []allocator.EngineEvent {
		return agent.take([]allocator.EngineAction{
			{Do: "start", Job: job, Attempt: attempt, Parameters: parameters, Tasks: tasks(gpus)}})
	}
	if events := append(start(1, 2), start(2, 1)...); len(events) != 0 {
		t.Fatalf("the events are %v", events)
	}
	for range 2 {
		if _, err := agent.look(context.Background(), []GangID{id}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(api.reported, ", "); got != fmt.Sprintf("ended %d.1, rejected %d.2", job, job) {
		t.Errorf("reported %q", got)
	}
}

func TestJobOfOthersCannotStartAGang(t *testing.T) {
	agent, api := newTestAgent()
	id := submitted(t, agent, api, "a")
	forged := &allocator.QueueJob{ID: 99, Name: "forged", EngineParameters: api.jobs[id.jobName()].EngineParameters}
	api.jobs["forged"] = forged
	if _, err := agent.mirror.refresh(context.Background()); err != nil || agent.mirror.known[id].id == 99 {
		t.Fatalf("the gang's job is %v, %v", agent.mirror.known[id], err)
	}
	events := agent.take([]allocator.EngineAction{
		{Do: "start", Job: 99, Attempt: 1, Parameters: forged.EngineParameters, Tasks: tasks(2)}})
	if len(events) != 1 || events[0].Kind != "rejected" || agent.attempts[id] != nil {
		t.Errorf("the events are %v, the attempts %v", events, agent.attempts)
	}
}

func TestNodesAreToldWithTheirGPUsAsTheyComeGoAndChange(t *testing.T) {
	agent, _ := newTestAgent()
	agent.told = make(map[string]toldNode)
	node := func(gpus string) *corev1.Node {
		list := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{
			Capacity: list, Allocatable: list,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	}
	for _, step := range []struct {
		gpus    string
		deleted bool
		want    string
		count   int64
	}{
		{"4", false, "node_back", 4}, {"8", false, "node_back", 8},
		// The device plugin is away: kubelet says 0.
		{"0", false, "node_back", 0}, {"8", false, "node_back", 8}, {"8", true, "node_removed", -1},
	} {
		agent.store.take(node(step.gpus), step.deleted)
		events := agent.renewNodes()
		if len(events) != 1 || events[0].Kind != step.want || events[0].Node != "n2" {
			t.Fatalf("the events are %+v", events)
		}
		if got := events[0].GPUs; (got == nil) != step.deleted || (got != nil && *got != step.count) {
			t.Errorf("the GPUs are %v, want %d", got, step.count)
		}
		if again := agent.renewNodes(); len(again) != 0 {
			t.Errorf("told again: %+v", again)
		}
	}
}

func TestGPUsOfOtherPodsAreTakenOffTheirNode(t *testing.T) {
	agent, _ := newTestAgent()
	agent.told = make(map[string]toldNode)
	list := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	agent.store.take(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{
		Capacity: list, Allocatable: list,
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, false)
	agent.renewNodes()
	strip := StripPods([]string{"nvidia.com/gpu"})
	other := func(name, node string, phase corev1.PodPhase, gone bool) {
		pod := rawPod("other", name, name)
		pod.Spec.SchedulingGates, pod.Spec.NodeName, pod.Status.Phase = nil, node, phase
		stripped, err := strip(pod)
		if err != nil {
			t.Fatal(err)
		}
		agent.store.take(stripped, gone)
	}
	expectGPUs := func(want int64) {
		t.Helper()
		_, renewed := agent.store.changed()
		events := agent.renewNodes()
		if want < 0 {
			if renewed || len(events) != 0 {
				t.Fatalf("the events are %+v", events)
			}
			return
		}
		if !renewed || len(events) != 1 || *events[0].GPUs != want {
			t.Fatalf("the events are %+v, want %d GPUs", events, want)
		}
	}
	agent.store.changed()
	other("waits", "", corev1.PodPending, false)
	expectGPUs(-1)
	other("waits", "n2", corev1.PodPending, false)
	expectGPUs(2)
	other("waits", "n2", corev1.PodRunning, false)
	expectGPUs(-1)
	other("second", "n2", corev1.PodRunning, false)
	other("third", "n2", corev1.PodRunning, false) // More than the node has.
	expectGPUs(0)
	other("third", "n2", corev1.PodRunning, true)
	other("second", "n2", corev1.PodSucceeded, false)
	expectGPUs(2)
	other("waits", "n2", corev1.PodRunning, true)
	expectGPUs(4)
	// A pod that Larder has placed counts at the allocator.
	ours := rawPod("team", "ours", "ours")
	ours.Spec.SchedulingGates, ours.Spec.NodeName = nil, "n2"
	ours.Annotations = annotationsOf(Key{1, 1, fakeQueueID}.String())
	agent.store.take(ours, false)
	expectGPUs(-1)
}

func TestNodeThatNoLongerNamesItsGPUsStays(t *testing.T) {
	agent, api := newTestAgent()
	node := func(list corev1.ResourceList) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{
			Capacity: list, Allocatable: list,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	}
	agent.store.take(node(corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}), false)
	if err := agent.attach(context.Background()); err != nil || len(api.attached.Nodes) != 1 {
		t.Fatalf("the nodes are %+v, %v", api.attached.Nodes, err)
	}
	agent.store.take(node(nil), false)
	if events := agent.renewNodes(); len(events) != 1 || events[0].Kind != "node_back" || *events[0].GPUs != 0 {
		t.Errorf("the events are %+v", events)
	}
	if err := agent.attach(context.Background()); err != nil || len(api.attached.Nodes) != 1 {
		t.Errorf("the nodes are %+v, %v", api.attached.Nodes, err)
	}
}

func TestRestoredAttemptOfAnotherQueueIsToldAndStopped(t *testing.T) {
	agent, api := newTestAgent()
	id := submitted(t, agent, api, "a")
	old := Key{7, 3, "lost"}
	placed(agent, "team", "a", annotationsOf(old.String()))
	agent.restore()
	if err := agent.attach(context.Background()); err != nil {
		t.Fatal(err)
	}
	if told := api.attached.Attempts; len(told) != 1 || told[0].Kind != "started" || told[0].Queue != "lost" {
		t.Fatalf("the attempts are %+v", told)
	}
	// Nothing is deleted before the allocator asks for it.
	expect(t, Decide(agent.store.get(id), agent.attempts[id], ready), "")
	agent.take([]allocator.EngineAction{{Do: "stop", Queue: old.Queue, Job: old.Job, Attempt: old.Attempt}})
	expect(t, Decide(agent.store.get(id), agent.attempts[id], ready), "delete a")
}

func TestJobsOfGangsThatAreGoneAreCancelledBeforeTheAgentAttaches(t *testing.T) {
	agent, api := newTestAgent()
	gone := submitted(t, agent, api, "gone")
	there := submitted(t, agent, api, "there")
	agent.store.take(rawPod("team", "gone", "gone"), true)
	if agent.store.get(gone).isPresent() {
		t.Fatal("the gang is still there")
	}
	ids, err := agent.mirror.refresh(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	agent.cancelGone(context.Background(), ids)
	if err := agent.attach(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(api.startable) != 1 || api.startable[0] != there.jobName() {
		t.Errorf("the allocator could start %v", api.startable)
	}
}

func TestAgentEndsOnceAnotherLeads(t *testing.T) {
	agent, _ := newTestAgent()
	leader := "me"
	agent.options.Leader = func(context.Context) (string, error) { return leader, nil }
	for range 2 {
		if err := agent.checkLeads(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	leader = "other"
	if err := agent.checkLeads(context.Background()); !errors.Is(err, errNotLeading) {
		t.Errorf("the error is %v", err)
	}
}
