package place

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// fakeQueue keeps jobs as the allocator does. It knows the tenant "team" only.
type fakeQueue struct {
	last int64
	jobs map[string]*allocator.QueueJob
}

func (f *fakeQueue) Submit(_ context.Context, jobs []allocator.Submission) ([]int64, error) {
	for _, job := range jobs {
		if job.Tenant != "team" {
			return nil, &wire.StatusError{Status: http.StatusNotFound, Message: "there is no tenant " + job.Tenant}
		}
		if known := f.jobs[job.Name]; known != nil && !known.HasEnded() {
			return nil, &wire.StatusError{Status: http.StatusConflict, Message: "the name is in use"}
		}
	}
	var ids []int64
	for _, job := range jobs {
		f.last++
		f.jobs[job.Name] = &allocator.QueueJob{
			ID: f.last, Name: job.Name, State: "waiting", EngineParameters: job.EngineParameters,
		}
		ids = append(ids, f.last)
	}
	return ids, nil
}

// fakeQueueID is the identity of a fakeQueue.
const fakeQueueID = "q-1"

func (f *fakeQueue) Queue(context.Context) (allocator.Queue, error) {
	var active []allocator.QueueJob
	for _, job := range f.jobs {
		if !job.HasEnded() {
			active = append(active, *job)
		}
	}
	return allocator.Queue{ID: fakeQueueID, Jobs: active}, nil
}

func (f *fakeQueue) QueueJob(_ context.Context, name string) (allocator.QueueJob, error) {
	if job := f.jobs[name]; job != nil {
		return *job, nil
	}
	return allocator.QueueJob{}, &wire.StatusError{Status: http.StatusNotFound}
}

func (f *fakeQueue) Cancel(_ context.Context, id int64) error {
	for _, job := range f.jobs {
		if job.ID == id {
			job.State = "cancelled"
		}
	}
	return nil
}

// site is a mirror between a fake queue and pods that a test makes.
type site struct {
	t      *testing.T
	queue  *fakeQueue
	store  *store
	mirror *mirror
}

func newSite(t *testing.T) *site {
	queue := &fakeQueue{jobs: make(map[string]*allocator.QueueJob)}
	from := newStore([]string{"nvidia.com/gpu"})
	for _, name := range []string{"team", "other"} {
		from.take(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	}
	to := &cluster{fake.NewClientBuilder().Build()}
	return &site{t, queue, from, newMirror(queue, to, from, slog.Default(), time.Unix(0, 0))}
}

func (s *site) sync(attempts ...GangID) error {
	ids, _ := s.store.changed()
	return s.mirror.sync(context.Background(), ids, func(id GangID) bool { return slices.Contains(attempts, id) })
}

func (s *site) states() string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(s.queue.jobs)) {
		text += fmt.Sprintf("%s %s %d;", name, s.queue.jobs[name].State, s.queue.jobs[name].ID)
	}
	return text
}

func (s *site) expect(want string) {
	s.t.Helper()
	if got := s.states(); got != want {
		s.t.Fatalf("the queue is %q, want %q", got, want)
	}
}

func rawPod(namespace, name, uid string) *corev1.Pod {
	limits := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: Gate}}, Containers: []corev1.Container{
			{Name: "train", Resources: corev1.ResourceRequirements{Limits: limits}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func TestGangIsSubmittedOnceAndCancelledWhenItGoes(t *testing.T) {
	s := newSite(t)
	pod := rawPod("team", "a", "1")
	s.store.take(pod, false)
	for range 2 {
		if err := s.sync(); err != nil {
			t.Fatal(err)
		}
		s.store.again(GangID{"team", "a"})
	}
	s.expect("kubernetes-team.a waiting 1;")
	s.store.take(pod, true)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-team.a cancelled 1;")
}

func TestGangThatWasMadeAnewIsAnotherJob(t *testing.T) {
	s := newSite(t)
	s.store.take(rawPod("team", "a", "1"), false)
	s.sync()
	s.store.take(rawPod("team", "a", "1"), true)
	s.store.take(rawPod("team", "a", "2"), false)
	s.sync()
	s.store.again(GangID{"team", "a"})
	s.sync()
	s.expect("kubernetes-team.a waiting 2;")
}

func TestRefusedGangDoesNotStopOthers(t *testing.T) {
	s := newSite(t)
	s.store.take(rawPod("other", "a", "1"), false)
	s.store.take(rawPod("team", "b", "2"), false)
	s.store.take(rawPod("team", "c", "3"), false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	if len(s.queue.jobs) != 2 || s.queue.jobs["kubernetes-other.a"] != nil {
		t.Errorf("the queue is %q", s.states())
	}
	if again := s.mirror.refused[GangID{"other", "a"}].again; !again.After(time.Now()) {
		t.Errorf("it is tried again at %v", again)
	}
}

func TestGangThatRunsIsNotSubmittedAgain(t *testing.T) {
	s := newSite(t)
	s.store.take(rawPod("team", "a", "1"), false)
	if err := s.sync(GangID{"team", "a"}); err != nil {
		t.Fatal(err)
	}
	s.expect("")
}

func TestJobThatEndedBeforeItsGangDoesNotRunAgain(t *testing.T) {
	s := newSite(t)
	s.store.take(rawPod("team", "a", "1"), false)
	s.sync()
	s.queue.jobs["kubernetes-team.a"].State = "cancelled"
	// Another controller does not know that the job was there.
	s.mirror = newMirror(s.queue, nil, s.store, slog.Default(), time.Now().Add(time.Hour))
	s.store.again(GangID{"team", "a"})
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-team.a cancelled 1;")
}

func TestJobThatIsSuspendedAndResumedRunsAgain(t *testing.T) {
	s := newSite(t)
	s.mirror.since = time.Now().Add(time.Hour) // The Job is older than this controller.
	for _, suspended := range []bool{false, true, false} {
		s.store.take(rawElasticJob(func(job *batchv1.Job) { job.Spec.Suspend = &suspended }), false)
		if err := s.sync(); err != nil {
			t.Fatal(err)
		}
	}
	s.expect("kubernetes-team.train waiting 2;")
}

func TestJobThatIsResumedAfterARestartRunsAgain(t *testing.T) {
	s := newSite(t)
	suspended := true
	job := rawElasticJob(func(job *batchv1.Job) { job.Spec.Suspend = &suspended })
	client := fake.NewClientBuilder().WithObjects(job).Build()
	s.mirror.cluster = &cluster{client}
	s.mirror.refresh(context.Background())
	s.store.take(rawElasticJob(nil), false)
	s.sync()
	s.store.take(job, false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-team.train cancelled 1;")
	// Somebody resumes the Job while no controller runs.
	s.mirror = newMirror(s.queue, s.mirror.cluster, s.store, slog.Default(), time.Now().Add(time.Hour))
	s.mirror.refresh(context.Background())
	if err := client.Get(context.Background(), types.NamespacedName{Namespace: "team", Name: "train"}, job); err != nil {
		t.Fatal(err)
	}
	suspended = false
	job.Spec.Suspend = &suspended
	s.store.take(job, false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-team.train waiting 2;")
}

func TestTenantIsThatOfTheNamespace(t *testing.T) {
	s := newSite(t)
	s.store.take(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "vision", Labels: map[string]string{tenantLabel: "team"}}}, false)
	s.store.take(rawPod("vision", "a", "1"), false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-vision.a waiting 1;")
}

func TestNodes(t *testing.T) {
	node := func(status corev1.ConditionStatus, cordoned bool) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
				"nvidia.com/gpu.product": "A100", "topology.kubernetes.io/zone": "z1"}},
			Spec: corev1.NodeSpec{Unschedulable: cordoned},
			Status: corev1.NodeStatus{
				Capacity:    corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("7")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
			},
		}
	}
	for _, c := range []struct {
		name string
		node *corev1.Node
		want NodeState
		gpus bool
	}{
		{"ready", node(corev1.ConditionTrue, false), NodeBack, true},
		{"cordoned", node(corev1.ConditionTrue, true), NodeDrained, true},
		{"silent", node(corev1.ConditionUnknown, false), NodeLost, true},
		{"not ready, and cordoned", node(corev1.ConditionFalse, true), NodeLost, true},
		{"new", &corev1.Node{}, NodeLost, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, gpus := nodeOf(c.node, []string{"nvidia.com/gpu"})
			if state != c.want || (gpus != nil) != c.gpus {
				t.Errorf("nodeOf() = %v, %v, want %v, %v", state, gpus, c.want, c.gpus)
			}
			if gpus != nil && *gpus != (NodeGPUs{7, "A100", "z1"}) {
				t.Errorf("the GPUs are %v", *gpus)
			}
		})
	}
}

func TestStrippedPodIsPlacedAsTheWholeOne(t *testing.T) {
	pod := rawPod("team", "a", "1")
	want := podOf(pod.DeepCopy(), []string{"nvidia.com/gpu"})
	strip := StripPods([]string{"nvidia.com/gpu"})
	stripped, err := strip(pod)
	if err != nil {
		t.Fatal(err)
	}
	got := podOf(stripped.(*corev1.Pod), []string{"nvidia.com/gpu"})
	if got == nil || got.Work != want.Work || got.Gang != want.Gang {
		t.Errorf("the pod is %+v, want %+v", got, want)
	}
	other := rawPod("team", "b", "2")
	other.Spec.SchedulingGates = nil
	other.Spec.NodeName = "n1"
	if stripped, err = strip(other); err != nil || stripped.(*corev1.Pod).Spec.NodeName != "n1" {
		t.Errorf("a pod of others is %+v, %v", stripped, err)
	}
	other.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	if stripped, err = strip(other); err != nil || len(stripped.(*corev1.Pod).Spec.Containers) != 0 {
		t.Errorf("a pod of others without GPUs is %+v, %v", stripped, err)
	}
}

func TestGangWaitsUntilItsTenantIsKnown(t *testing.T) {
	s := newSite(t)
	s.store.take(rawPod("late", "a", "1"), false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "late", Labels: map[string]string{tenantLabel: "team"}}}
	s.store.take(namespace, false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-late.a waiting 1;")
	s.store.take(namespace, true)
	if _, known := s.store.tenantOf("late"); known {
		t.Error("a namespace that is gone has a tenant")
	}
}

func TestEpochsThatAreNoNumberCountAsMissing(t *testing.T) {
	for text, want := range map[string]float64{"2.5": 2.5, "NaN": 0, "Inf": 0, "-Inf": 0, "-1": 0, "many": 0, "1e999": 0} {
		pod := rawPod("team", "a", "1")
		pod.Annotations = map[string]string{epochsAnnotation: text}
		if got := podOf(pod, nil).Work.Epochs; got != want {
			t.Errorf("%q epochs are %v, want %v", text, got, want)
		}
	}
}

func TestRatesThatAreNoQuantityCountAsMissing(t *testing.T) {
	for text, want := range map[string]float64{
		"200M": 2e8, "1500000": 1.5e6, "1Gi": 1 << 30, "2e+9": 2e9, "3E": 3e18, "0": 0, "-1M": 0, "fast": 0,
		"1e-9999999": 0, strings.Repeat("9", 22) + "e999999": 0, "0." + strings.Repeat("1", 1000): 0,
	} {
		pod := rawPod("team", "a", "1")
		pod.Annotations = map[string]string{idealRateAnnotation: text}
		if got := podOf(pod, nil).Work.IdealRate; got != want {
			t.Errorf("the rate %q is %v, want %v", text, got, want)
		}
	}
}

func TestIdealRateIsSubmittedWithItsDataset(t *testing.T) {
	for dataset, want := range map[string]float64{"images": 2e8, "": 0} {
		pod := rawPod("team", "a", "1")
		pod.Labels = map[string]string{follow.DatasetLabel: dataset}
		pod.Annotations = map[string]string{idealRateAnnotation: "200M"}
		gang := Gang{ID: GangID{Namespace: "team", Name: "a"}, Pods: []*Pod{podOf(pod, []string{"nvidia.com/gpu"})}}
		submission, err := gang.submission("team")
		if err != nil || submission.IdealRate != want {
			t.Errorf("dataset %q: the rate is %v (%v), want %v", dataset, submission.IdealRate, err, want)
		}
	}
}

func TestUserOfThePodsReadsForTheJob(t *testing.T) {
	pod := rawPod("team", "a", "1")
	gang := Gang{ID: GangID{Namespace: "team", Name: "a"}, Pods: []*Pod{podOf(pod, []string{"nvidia.com/gpu"})}}
	if submission, err := gang.submission("team"); err != nil || submission.ReaderUID != nil {
		t.Errorf("the reader is %v (%v), and no pod says it", submission.ReaderUID, err)
	}
	user := int64(1001)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user}
	gang.Pods = []*Pod{podOf(pod, []string{"nvidia.com/gpu"})}
	if submission, err := gang.submission("team"); err != nil || submission.ReaderUID == nil || *submission.ReaderUID != user {
		t.Errorf("the reader is %v (%v), want %d", submission.ReaderUID, err, user)
	}
}

// encodingQueue refuses the gang "bad" as the client does that cannot encode it.
type encodingQueue struct{ *fakeQueue }

func (q encodingQueue) Submit(ctx context.Context, jobs []allocator.Submission) ([]int64, error) {
	for _, job := range jobs {
		if job.Name == "kubernetes-team.bad" {
			return nil, fmt.Errorf("POST /v1/queue: %w", wire.ErrEncode)
		}
	}
	return q.fakeQueue.Submit(ctx, jobs)
}

func TestGangThatCannotBeEncodedDoesNotStopOthers(t *testing.T) {
	s := newSite(t)
	s.mirror.queue = encodingQueue{s.queue}
	s.store.take(rawPod("team", "bad", "1"), false)
	s.store.take(rawPod("team", "good", "2"), false)
	if err := s.sync(); err != nil {
		t.Fatal(err)
	}
	s.expect("kubernetes-team.good waiting 1;")
}

func TestGangGoesOnWithoutItsOldestJob(t *testing.T) {
	id := GangID{"team", "set"}
	known := mirrored{7, "oldest", "q-1"}
	pod := func(owner types.UID, key Key) *Pod {
		return &Pod{UID: "pod", HasOwner: true, Owner: owner, Attempt: key}
	}
	for _, c := range []struct {
		name string
		gang Gang
		want bool
	}{
		{"the oldest is there", Gang{id, []*Job{{UID: "oldest"}}, nil}, true},
		{"another runs", Gang{id, []*Job{{UID: "other"}}, []*Pod{pod("other", Key{7, 1, "q-1"})}}, true},
		{"another is suspended", Gang{id, []*Job{{UID: "other", ByUs: &Suspension{Key: Key{7, 1, "q-1"}}}}, nil}, true},
		{"another was resumed", Gang{id, []*Job{{UID: "other", Attempt: Key{7, 2, "q-1"}}}, nil}, true},
		{"a pod is left of it", Gang{id, []*Job{{UID: "other"}}, []*Pod{pod("oldest", Key{7, 1, "q-1"})}}, false},
		{"another queue's attempt", Gang{id, []*Job{{UID: "other"}}, []*Pod{pod("other", Key{7, 1, "q-0"})}}, false},
		{"another job's attempt", Gang{id, []*Job{{UID: "other"}}, []*Pod{pod("other", Key{8, 1, "q-1"})}}, false},
		{"all are gone", Gang{ID: id}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.gang.isOf(known); got != c.want {
				t.Errorf("isOf() = %v, want %v", got, c.want)
			}
		})
	}
}

func TestNodeThatGetsGPUsIsAnnounced(t *testing.T) {
	s := newSite(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	s.store.take(node.DeepCopy(), false)
	s.store.changed()
	s.store.take(node.DeepCopy(), false)
	if _, renewed := s.store.changed(); renewed {
		t.Error("a heartbeat counts as a change")
	}
	node.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	s.store.take(node, false)
	if _, renewed := s.store.changed(); !renewed {
		t.Error("the device plugin's GPUs do not count as a change")
	}
}

func TestEachNameMayBePlacedUntilAllGangsAreKnown(t *testing.T) {
	s := newSite(t)
	if !s.store.hasName("kubernetes-team.a") {
		t.Error("a name is nobody's before the watch has begun")
	}
	s.store.synced = true
	if s.store.hasName("kubernetes-team.a") {
		t.Error("a name without a gang is placed")
	}
}

func TestOwners(t *testing.T) {
	isController := true
	for _, c := range []struct {
		version, kind string
		isPlaced      bool
	}{{"batch/v1", "Job", true}, {"batch.volcano.sh/v1alpha1", "Job", false}, {"apps/v1", "ReplicaSet", false}} {
		pod := rawPod("team", "a", "1")
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: c.version, Kind: c.kind, Name: "o", Controller: &isController}}
		if got := podOf(pod, nil); (got != nil) != c.isPlaced {
			t.Errorf("the pod of a %s of %s is %+v", c.kind, c.version, got)
		}
		pod.Labels = map[string]string{"larder.io/gang": "g"}
		if got := podOf(pod, nil); got == nil || got.HasOwner != c.isPlaced {
			t.Errorf("the labelled pod of a %s of %s is %+v", c.kind, c.version, got)
		}
	}
}

func TestOwnerOfPodsThatWaitInVainIsNamedOnce(t *testing.T) {
	var output bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&output, nil)))
	defer slog.SetDefault(before)
	s := newSite(t)
	isController := true
	for _, name := range []string{"a", "b"} {
		pod := rawPod("team", name, name)
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "o", UID: "o", Controller: &isController}}
		stripped, err := StripPods([]string{"nvidia.com/gpu"})(pod)
		if err != nil {
			t.Fatal(err)
		}
		s.store.take(stripped, false)
		defer func() {
			if s.store.take(stripped, true); len(s.store.named) != 0 {
				t.Error("the owner is kept after its pods")
			}
		}()
	}
	if count := strings.Count(output.String(), "ReplicaSet of apps/v1"); count != 1 {
		t.Errorf("the log names the owner %d times: %s", count, output.String())
	}
}
