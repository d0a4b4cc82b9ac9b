package kueue

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
	"larder.io/larder/scheduler/engines/kubernetes/internal/place"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

const gib = 1 << 30

// fakeAllocator has two nodes of 2 GiB with the dataset images, and 1 GB/s.
type fakeAllocator struct {
	jobs   map[string]*allocator.Job
	isFull bool
	staged bool
	// Requests that change something.
	changes int
	// n1 does not report, or has not reported yet.
	isSilent, isLate bool
	cachedBytes      int64
	freeBytes        int64 // for reservations; 0: no limit
	startedUnixMs    int64
	registerFails    int // a status
	isAway           bool
}

func (f *fakeAllocator) Status(context.Context) (allocator.Status, error) {
	return allocator.Status{RemoteBytesPerSecond: 1e9, StartedUnixMs: f.startedUnixMs}, nil
}

func (f *fakeAllocator) Nodes(context.Context) ([]allocator.Node, error) {
	n2 := allocator.Node{Name: "n2", Alive: true, Capacity: allocator.Tiers{DiskBytes: 2 * gib}}
	if f.isLate {
		return []allocator.Node{n2}, nil
	}
	return []allocator.Node{
		{Name: "n1", Alive: !f.isSilent, Capacity: allocator.Tiers{MemoryBytes: gib, DiskBytes: gib}},
		n2,
	}, nil
}

func (f *fakeAllocator) Datasets(context.Context) ([]allocator.Dataset, error) {
	images := allocator.Dataset{
		Name: "images", SizeBytes: 9 * gib, CachedBytes: f.cachedBytes,
		Nodes: []allocator.DatasetNode{{Name: "n1"}, {Name: "n2"}},
	}
	if f.isSilent || f.isLate {
		images.Nodes = images.Nodes[1:]
	}
	return []allocator.Dataset{
		images,
		{Name: "declared", Nodes: []allocator.DatasetNode{{Name: "n2"}}},
		{Name: "near", Nodes: []allocator.DatasetNode{{Name: "n2"}}},
	}, nil
}

func (f *fakeAllocator) Jobs(context.Context) ([]allocator.Job, error) {
	if f.isAway {
		return nil, &wire.StatusError{Status: http.StatusBadGateway, Message: "away"}
	}
	rows := make([]allocator.Job, 0, len(f.jobs))
	for _, job := range f.jobs {
		row := *job
		row.Staged = f.staged
		rows = append(rows, row)
	}
	return rows, nil
}

func (f *fakeAllocator) Register(_ context.Context, job allocator.Registration) error {
	f.changes++
	if f.registerFails != 0 {
		return &wire.StatusError{Status: f.registerFails, Message: "no such job"}
	}
	if f.jobs[job.Name] != nil {
		return &wire.StatusError{Status: http.StatusConflict, Message: "registered already"}
	}
	f.jobs[job.Name] = &allocator.Job{Name: job.Name, Dataset: job.Dataset, User: job.User, Registered: true}
	return nil
}

func (f *fakeAllocator) Reserve(_ context.Context, job string, asked allocator.Reservation) error {
	f.changes++
	if f.isFull || (f.freeBytes > 0 && asked.CacheBytes > f.freeBytes) {
		return &wire.StatusError{Status: http.StatusInsufficientStorage, Message: "all is reserved"}
	}
	f.jobs[job].CacheBytes, f.jobs[job].BandwidthBytesPerSecond = asked.CacheBytes, asked.BandwidthBytesPerSecond
	return nil
}

func (f *fakeAllocator) Remove(_ context.Context, job string) error {
	f.changes++
	delete(f.jobs, job)
	return nil
}

func pods(name, dataset string, count int64, cache, remote string) podSet {
	limits := corev1.ResourceList{}
	if cache != "" {
		limits[CacheResource] = resource.MustParse(cache)
	}
	if remote != "" {
		limits[RemoteResource] = resource.MustParse(remote)
	}
	set := podSet{Name: name, Count: count}
	if dataset != "" {
		set.Template.Labels = map[string]string{follow.DatasetLabel: dataset}
	}
	set.Template.Spec.Containers = []corev1.Container{
		{Name: "train", Resources: corev1.ResourceRequirements{Limits: limits}},
	}
	return set
}

// newWorkload makes the Workload of a Job that got its quota so long ago, and waits for its check.
func newWorkload(job string, waited time.Duration, sets ...podSet) *workload {
	isController := true
	made := &workload{}
	made.Metadata = metav1.ObjectMeta{
		Name: "job-" + job, Namespace: "team", UID: "1",
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: "2", Controller: &isController},
		},
	}
	made.Spec.PodSets = sets
	since := metav1.NewTime(time.Now().Add(-waited).Truncate(time.Second))
	made.Status.Conditions = []metav1.Condition{
		{Type: "QuotaReserved", Status: metav1.ConditionTrue, Reason: "r", LastTransitionTime: since},
	}
	made.Status.AdmissionChecks = []checkState{{Name: "larder", State: statePending, LastTransitionTime: since}}
	return made
}

func encoded(t *testing.T, w *workload) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(workloadKind)
	return object
}

func newReconciler(t *testing.T, api *fakeAllocator, workloads ...*workload) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	own := empty(checkKind)
	own.SetName("larder")
	if err := unstructured.SetNestedField(own.Object, ControllerName, "spec", "controllerName"); err != nil {
		t.Fatal(err)
	}
	other := empty(checkKind)
	other.SetName("other")
	if err := unstructured.SetNestedField(other.Object, "other/controller", "spec", "controllerName"); err != nil {
		t.Fatal(err)
	}
	late := &v1alpha1.Dataset{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: v1alpha1.DatasetSpec{URL: "file:///l"}}
	declared := late.DeepCopy()
	declared.Name = "declared"
	objects := []client.Object{own, other, late, declared}
	for _, one := range workloads {
		objects = append(objects, encoded(t, one))
	}
	built := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(empty(checkKind), empty(workloadKind)).Build()
	if api.jobs == nil {
		api.jobs = make(map[string]*allocator.Job)
	}
	return &Reconciler{
		Client: built, Allocator: api, Patience: time.Minute, NodeSelector: map[string]string{"fast": "yes"},
	}
}

func compare(t *testing.T, r *Reconciler) {
	t.Helper()
	if err := r.Compare(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, r *Reconciler, name string) checkState {
	t.Helper()
	object := empty(workloadKind)
	if err := r.Client.Get(context.Background(), client.ObjectKey{Namespace: "team", Name: name}, object); err != nil {
		t.Fatal(err)
	}
	read, err := workloadOf(object)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Status.AdmissionChecks) != 1 {
		t.Fatalf("Workload %s has the checks %v", name, read.Status.AdmissionChecks)
	}
	return read.Status.AdmissionChecks[0]
}

func TestOnlyOwnChecksAreActive(t *testing.T) {
	r := newReconciler(t, &fakeAllocator{})
	compare(t, r)
	for name, wanted := range map[string]int{"larder": 1, "other": 0} {
		check := empty(checkKind)
		if err := r.Client.Get(context.Background(), client.ObjectKey{Name: name}, check); err != nil {
			t.Fatal(err)
		}
		conditions, _, err := unstructured.NestedSlice(check.Object, "status", "conditions")
		if err != nil || len(conditions) != wanted {
			t.Errorf("AdmissionCheck %s has the conditions %v, %v", name, conditions, err)
		}
	}
}

func TestWorkloadIsReadyOnceItsCacheIsReservedAndFilled(t *testing.T) {
	api := &fakeAllocator{}
	r := newReconciler(t, api, newWorkload("train", 0, pods("main", "images", 3, "1", "400"), pods("head", "", 1, "", "")))
	compare(t, r)
	row := api.jobs["kubernetes-team.train"]
	if row == nil || row.CacheBytes != 3*gib || row.BandwidthBytesPerSecond != 150e6 {
		t.Fatalf("reserved %+v", row)
	}
	if got := answer(t, r, "job-train"); got.State != statePending || !strings.Contains(got.Message, "0 GiB of 3 GiB.") {
		t.Errorf("while the cache is filled: %+v", got)
	}
	api.staged = true
	compare(t, r)
	got := answer(t, r, "job-train")
	if got.State != stateReady || len(got.PodSetUpdates) != 2 {
		t.Fatalf("once the cache is filled: %+v", got)
	}
	if got.PodSetUpdates[0].NodeSelector["fast"] != "yes" || got.PodSetUpdates[1].NodeSelector != nil {
		t.Errorf("updates %+v", got.PodSetUpdates)
	}
}

func TestOnlyNodeIsSelectedUnlessThePodSelectsOne(t *testing.T) {
	chosen := pods("b", "near", 1, "", "")
	chosen.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
	r := newReconciler(t, &fakeAllocator{}, newWorkload("train", 0, pods("a", "near", 1, "", ""), chosen))
	compare(t, r)
	got := answer(t, r, "job-train")
	if got.State != stateReady || got.PodSetUpdates[0].NodeSelector[corev1.LabelHostname] != "n2" {
		t.Errorf("the answer is %+v", got)
	}
	if _, has := got.PodSetUpdates[1].NodeSelector[corev1.LabelHostname]; has {
		t.Errorf("the pod's own node is changed: %+v", got)
	}
}

func TestAnswersToWhatCannotBeHad(t *testing.T) {
	one := func(dataset string, count int64, cache, remote string) []podSet {
		return []podSet{pods("main", dataset, count, cache, remote)}
	}
	gated := pods("main", "images", 1, "1", "")
	gated.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: place.Gate}}
	for name, test := range map[string]struct {
		waited time.Duration
		sets   []podSet
		isFull bool
		state  string
		text   string
	}{
		"too much cache": {
			waited: time.Hour, sets: one("images", 5, "1", ""), state: stateRejected, text: "5 GiB of 4 GiB",
		},
		"endless cache": {
			waited: time.Hour, sets: one("images", 9, "9E", ""), state: stateRejected, text: "more than all nodes",
		},
		"too much bandwidth": {
			waited: time.Hour, sets: one("images", 2, "", "4001"), state: stateRejected, text: "8002 of 8000",
		},
		"unknown dataset": {
			waited: time.Hour, sets: one("imagenot", 1, "", ""), state: stateRejected, text: "no such Dataset",
		},
		"too much cache, at first": {
			sets: one("images", 5, "1", ""), state: statePending, text: "5 GiB of 4 GiB",
		},
		"less than none": {
			sets: one("images", 1, "-1", ""), state: stateRejected, text: "less than none",
		},
		"dataset that comes": {
			sets: one("late", 1, "", ""), state: statePending, text: "yet",
		},
		"dataset that does not come": {
			waited: time.Hour, sets: one("late", 1, "", ""), state: stateRetry, text: "yet",
		},
		"full": {
			isFull: true, sets: one("images", 1, "1", ""), state: statePending, text: "all is reserved",
		},
		"full for long": {
			waited: time.Hour, isFull: true, sets: one("images", 1, "1", ""), state: stateRetry, text: "all is reserved",
		},
		"no dataset": {
			sets: one("", 1, "1", ""), state: stateRejected, text: "without the label",
		},
		"nothing": {
			sets: one("", 1, "", ""), state: stateReady, text: "nothing to reserve",
		},
		"Larder decides": {
			sets: []podSet{gated}, state: stateReady, text: "nothing to reserve",
		},
		"several datasets": {
			sets:  []podSet{pods("a", "images", 1, "", ""), pods("b", "near", 1, "", "")},
			state: stateRejected, text: "reads one dataset",
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := &fakeAllocator{isFull: test.isFull, staged: true}
			r := newReconciler(t, api, newWorkload("train", test.waited, test.sets...))
			compare(t, r)
			got := answer(t, r, "job-train")
			if got.State != test.state || !strings.Contains(got.Message, test.text) {
				t.Errorf("the answer is %+v", got)
			}
			if row := api.jobs["kubernetes-team.train"]; row != nil && row.CacheBytes > 0 {
				t.Errorf("reserved %+v", row)
			}
		})
	}
}

func TestOtherKindsOfJobsNeedALabel(t *testing.T) {
	set := pods("main", "images", 1, "", "")
	made := newWorkload("train", 0, set)
	owner := &made.Metadata.OwnerReferences[0]
	owner.APIVersion, owner.Kind = "ray.io/v1", "RayJob"
	if _, err := requestOf(made); err == nil {
		t.Error("the pods of a RayJob have several owners")
	}
	owner.APIVersion, owner.Kind = "jobset.x-k8s.io/v1alpha2", "JobSet"
	if asked, err := requestOf(made); err != nil || asked.job != "kubernetes-team.train" {
		t.Errorf("the job is %q, %v", asked.job, err)
	}
	set.Template.Labels[follow.JobLabel] = "both"
	if asked, err := requestOf(made); err != nil || asked.job != "kubernetes-team.both" {
		t.Errorf("the job is %q, %v", asked.job, err)
	}
}

func TestAdmittedPartCounts(t *testing.T) {
	made := newWorkload("train", 0, pods("main", "images", 4, "1", ""))
	admitted := `{"admission": {"podSetAssignments": [{"name": "main", "count": 2}]}}`
	if err := json.Unmarshal([]byte(admitted), &made.Status); err != nil {
		t.Fatal(err)
	}
	if asked, err := requestOf(made); err != nil || asked.CacheBytes != 2*gib {
		t.Errorf("asked for %d bytes, %v", asked.CacheBytes, err)
	}
}

func TestReservationIsReleasedWithTheQuota(t *testing.T) {
	api := &fakeAllocator{staged: true, jobs: map[string]*allocator.Job{
		"kubernetes-team.runs":   {Name: "kubernetes-team.runs", Registered: true, Running: true, CacheBytes: gib},
		"kubernetes-team.placed": {Name: "kubernetes-team.placed", Registered: true, CacheBytes: gib},
		"slurm-1":                {Name: "slurm-1", Registered: true, CacheBytes: gib},
	}}
	evicted := newWorkload("train", 0, pods("main", "images", 1, "1", ""))
	r := newReconciler(t, api, evicted)
	r.IsPlaced = func(name string) bool { return name == "kubernetes-team.placed" }
	if !r.Keeps("kubernetes-team.unknown") {
		t.Error("before the first comparison all jobs are kept")
	}
	compare(t, r)
	if !r.Keeps("kubernetes-team.train") || r.Keeps("kubernetes-team.runs") {
		t.Error("the jobs of Workloads with quota are kept, and no others")
	}
	evicted.Status.Conditions = append(evicted.Status.Conditions,
		metav1.Condition{Type: "Evicted", Status: metav1.ConditionTrue, Reason: "r"})
	object := encoded(t, evicted)
	if err := r.Client.Status().Update(context.Background(), object); err != nil {
		t.Fatal(err)
	}
	compare(t, r)
	if r.Keeps("kubernetes-team.train") || api.jobs["kubernetes-team.train"] != nil {
		t.Error("the reservation of an evicted Workload is kept")
	}
	if row := api.jobs["kubernetes-team.runs"]; row == nil || row.CacheBytes != 0 {
		t.Errorf("a job that runs without a Workload has %+v", row)
	}
	for _, name := range []string{"kubernetes-team.placed", "slurm-1"} {
		if api.jobs[name].CacheBytes != gib {
			t.Errorf("job %s has lost its reservation", name)
		}
	}
}

func TestLostReservationIsMadeAgain(t *testing.T) {
	admitted := newWorkload("train", time.Hour, pods("main", "images", 1, "1", ""))
	admitted.Status.AdmissionChecks[0].State = stateReady
	api := &fakeAllocator{staged: true}
	r := newReconciler(t, api, admitted)
	compare(t, r)
	if row := api.jobs["kubernetes-team.train"]; row == nil || row.CacheBytes != gib {
		t.Errorf("reserved %+v", row)
	}
	if got := answer(t, r, "job-train"); got.State != stateReady {
		t.Errorf("the answer has changed: %+v", got)
	}
}

func TestRepeatedComparisonRequestsNothing(t *testing.T) {
	api := &fakeAllocator{staged: true, jobs: map[string]*allocator.Job{
		"kubernetes-team.plain": {Name: "kubernetes-team.plain", Registered: true, Running: true, Dataset: "images"},
	}}
	second := newWorkload("second", 0, labelled("both", "1"))
	second.Metadata.UID = "3"
	r := newReconciler(t, api, newWorkload("train", 0, pods("main", "images", 1, "1", "")),
		newWorkload("first", 0, labelled("both", "1")), second)
	compare(t, r)
	before := api.changes
	for range 3 {
		compare(t, r)
	}
	if before == 0 || api.changes != before {
		t.Errorf("%d requests, then %d", before, api.changes-before)
	}
}

// labelled makes a pod of the job that the label names.
func labelled(job, cache string) podSet {
	set := pods("main", "images", 1, cache, "")
	set.Template.Labels[follow.JobLabel] = job
	return set
}

func TestPartialViewIsNoReasonToReject(t *testing.T) {
	one := func(dataset, cache string) []podSet { return []podSet{pods("main", dataset, 1, cache, "")} }
	for name, test := range map[string]struct {
		api  *fakeAllocator
		sets []podSet
	}{
		"a node with the dataset is silent":    {&fakeAllocator{isSilent: true, isFull: true}, one("images", "3")},
		"nodes without the dataset may get it": {&fakeAllocator{isFull: true}, one("declared", "3")},
		"a silent node may have the dataset":   {&fakeAllocator{isSilent: true}, one("unknown", "1")},
		"the allocator has just started": {
			&fakeAllocator{isLate: true, startedUnixMs: time.Now().UnixMilli()}, one("images", "3"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReconciler(t, test.api, newWorkload("train", time.Hour, test.sets...))
			compare(t, r)
			if got := answer(t, r, "job-train"); got.State != stateRetry {
				t.Errorf("the answer is %+v", got)
			}
		})
	}
}

func TestBandwidthMayComeBackWithTheBudget(t *testing.T) {
	r := newReconciler(t, &fakeAllocator{}, newWorkload("train", time.Hour, pods("main", "images", 1, "", "9000")))
	budget := &v1alpha1.RemoteBudget{ObjectMeta: metav1.ObjectMeta{Name: "low"}}
	if err := r.Client.Create(context.Background(), budget); err != nil {
		t.Fatal(err)
	}
	compare(t, r)
	if got := answer(t, r, "job-train"); got.State != stateRetry {
		t.Errorf("the answer is %+v", got)
	}
}

func TestNodeIsSelectedOnlyIfNoOtherCanHaveTheDataset(t *testing.T) {
	for name, test := range map[string]struct {
		dataset  string
		isSilent bool
	}{"Dataset comes to all nodes": {"declared", false}, "silent node may have it": {"near", true}} {
		t.Run(name, func(t *testing.T) {
			r := newReconciler(t, &fakeAllocator{isSilent: test.isSilent},
				newWorkload("train", 0, pods("main", test.dataset, 2, "", "")))
			compare(t, r)
			got := answer(t, r, "job-train")
			if got.State != stateReady || len(got.PodSetUpdates[0].NodeSelector) != 1 {
				t.Errorf("the answer is %+v", got)
			}
		})
	}
}

func TestRefusedRegistrationIsAnswered(t *testing.T) {
	for status, state := range map[int]string{
		http.StatusBadRequest: stateRejected, http.StatusNotFound: stateRetry, http.StatusBadGateway: stateRetry,
	} {
		api := &fakeAllocator{registerFails: status}
		r := newReconciler(t, api, newWorkload("train", time.Hour, pods("main", "images", 1, "1", "")))
		err := r.Compare(context.Background())
		if (err != nil) != (status == http.StatusBadGateway) {
			t.Errorf("for %d the comparison returns %v", status, err)
		}
		if got := answer(t, r, "job-train"); got.State != state || !strings.Contains(got.Message, "no such job") {
			t.Errorf("for %d the answer is %+v", status, got)
		}
	}
}

func TestQuotaIsGivenBackWhileTheAllocatorIsAway(t *testing.T) {
	one := newWorkload("train", time.Hour, pods("main", "images", 1, "1", ""))
	r := newReconciler(t, &fakeAllocator{isAway: true}, one)
	if err := r.Compare(context.Background()); err == nil {
		t.Error("the allocator is away")
	}
	if got := answer(t, r, "job-train"); got.State != stateRetry || !strings.Contains(got.Message, "does not answer") {
		t.Errorf("the answer is %+v", got)
	}
}

func TestCacheThatDoesNotGrowEndsTheWait(t *testing.T) {
	api := &fakeAllocator{}
	r := newReconciler(t, api, newWorkload("train", time.Hour, pods("main", "images", 1, "2", "")))
	stall := func() {
		known := r.fills.byJob["kubernetes-team.train"]
		known.since = known.since.Add(-time.Hour)
		r.fills.byJob["kubernetes-team.train"] = known
	}
	compare(t, r)
	stall()
	api.cachedBytes = gib
	compare(t, r)
	if got := answer(t, r, "job-train"); got.State != statePending || !strings.Contains(got.Message, "1 GiB of 2 GiB") {
		t.Errorf("while the cache grows: %+v", got)
	}
	stall()
	compare(t, r)
	if got := answer(t, r, "job-train"); got.State != stateRetry || !strings.Contains(got.Message, "not grown") {
		t.Errorf("once it has stopped: %+v", got)
	}
}

func TestWorkloadsOfOneJobGetTheirPartsOneAfterTheOther(t *testing.T) {
	running := newWorkload("a", 2*time.Hour, labelled("both", "3"))
	running.Status.AdmissionChecks[0].State = stateReady
	waiting := newWorkload("b", 0, labelled("both", "3"))
	api := &fakeAllocator{staged: true, freeBytes: 4 * gib}
	r := newReconciler(t, api, running, waiting)
	compare(t, r) // The allocator has lost its state.
	row := api.jobs["kubernetes-team.both"]
	if row == nil || row.CacheBytes != 3*gib {
		t.Errorf("reserved %+v", row)
	}
	if got := answer(t, r, "job-b"); got.State != statePending || !strings.Contains(got.Message, "all is reserved") {
		t.Errorf("the second Workload has %+v", got)
	}
	if err := r.Client.Delete(context.Background(), encoded(t, running)); err != nil {
		t.Fatal(err)
	}
	compare(t, r)
	if got := answer(t, r, "job-b"); got.State != stateReady {
		t.Errorf("the second Workload alone has %+v", got)
	}
}

func TestJobWithOtherDatasetWaitsForItsPods(t *testing.T) {
	name := "kubernetes-team.train"
	api := &fakeAllocator{jobs: map[string]*allocator.Job{
		name: {Name: name, Registered: true, Running: true, Dataset: "near"},
	}}
	r := newReconciler(t, api, newWorkload("train", 0, pods("main", "images", 1, "", "100")))
	compare(t, r)
	if got := answer(t, r, "job-train"); got.State != statePending || !strings.Contains(got.Message, "pods of job") {
		t.Errorf("the answer is %+v", got)
	}
	if api.jobs[name].Dataset != "near" || api.changes > 0 {
		t.Errorf("after %d requests the job is %+v", api.changes, api.jobs[name])
	}
	api.jobs[name].Running = false
	compare(t, r)
	if got := answer(t, r, "job-train"); got.State != stateReady || api.jobs[name].Dataset != "images" {
		t.Errorf("once the pods have ended: %+v, %+v", got, api.jobs[name])
	}
}

func TestAllOwnChecksAreAnswered(t *testing.T) {
	both := newWorkload("train", 0, pods("main", "images", 1, "", "100"))
	both.Status.AdmissionChecks = append(both.Status.AdmissionChecks, checkState{Name: "renamed", State: statePending})
	r := newReconciler(t, &fakeAllocator{}, both)
	check := empty(checkKind)
	check.SetName("renamed")
	if err := unstructured.SetNestedField(check.Object, ControllerName, "spec", "controllerName"); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.Create(context.Background(), check); err != nil {
		t.Fatal(err)
	}
	compare(t, r)
	object := empty(workloadKind)
	if err := r.Client.Get(context.Background(), client.ObjectKeyFromObject(encoded(t, both)), object); err != nil {
		t.Fatal(err)
	}
	read, err := workloadOf(object)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range read.Status.AdmissionChecks {
		if state.State != stateReady {
			t.Errorf("check %s is %+v", state.Name, state)
		}
	}
}

func TestEventIsToldOnlyOfWrittenAnswers(t *testing.T) {
	told := events.NewFakeRecorder(4)
	one := newWorkload("train", 0, pods("main", "", 1, "1", ""))
	r := newReconciler(t, &fakeAllocator{}, one)
	r.Events = told
	isConflict := true
	r.Client = interceptor.NewClient(r.Client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, made client.Client, part string, object client.Object,
			patch client.Patch, options ...client.SubResourcePatchOption) error {
			if isConflict {
				return apierrors.NewConflict(schema.GroupResource{Resource: "workloads"}, object.GetName(), nil)
			}
			return made.SubResource(part).Patch(ctx, object, patch, options...)
		},
	})
	state := &checkState{State: stateRejected, Message: strings.Repeat("é", noteBytesMax)}
	if err := r.write(context.Background(), one, one.Status.AdmissionChecks, state); err != nil {
		t.Fatal(err)
	}
	if len(told.Events) > 0 {
		t.Error("an answer is told that was not written")
	}
	isConflict = false
	compare(t, r)
	if len(told.Events) != 1 {
		t.Errorf("%d events", len(told.Events))
	}
	if note := shortened(state.Message, noteBytesMax+1); len(note) > noteBytesMax+1 || !utf8.ValidString(note) {
		t.Errorf("the note has %d bytes", len(note))
	}
}

func TestStrippedWorkloadAsksForTheSame(t *testing.T) {
	whole := newWorkload("train", time.Hour, pods("main", "images", 2, "1", "400"))
	user := int64(7)
	container := &whole.Spec.PodSets[0].Template.Spec.Containers[0]
	container.Env = []corev1.EnvVar{{Name: "LONG", Value: strings.Repeat("x", 4096)}}
	container.SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
	wanted, err := requestOf(whole)
	if err != nil {
		t.Fatal(err)
	}
	object, err := StripWorkload(encoded(t, whole))
	if err != nil {
		t.Fatal(err)
	}
	read, err := workloadOf(object.(*unstructured.Unstructured))
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Spec.PodSets[0].Template.Spec.Containers[0].Env) > 0 {
		t.Error("the environment is kept")
	}
	if asked, err := requestOf(read); err != nil || !reflect.DeepEqual(asked, wanted) || !read.holdsQuota() {
		t.Errorf("asked for %+v, %v", asked, err)
	}
}

func TestOwnMessageIsNoChange(t *testing.T) {
	before := newWorkload("train", 0, pods("main", "images", 1, "1", ""))
	after := newWorkload("train", 0, pods("main", "images", 1, "1", ""))
	after.Status.Conditions = before.Status.Conditions
	update := func() event.UpdateEvent {
		return event.UpdateEvent{ObjectOld: encoded(t, before), ObjectNew: encoded(t, after)}
	}
	after.Status.AdmissionChecks[0].Message = "The cache fills"
	if isChange(update()) {
		t.Error("a message is a change")
	}
	after.Status.AdmissionChecks[0].State = stateRetry
	if !isChange(update()) {
		t.Error("a state is no change")
	}
}

func TestNoJobIsKeptForKueueUntilItIsInstalled(t *testing.T) {
	r := newReconciler(t, &fakeAllocator{})
	mapper := meta.NewDefaultRESTMapper(nil)
	if err := r.findKueue(context.Background(), mapper, r.Client); err == nil || r.Keeps("kubernetes-team.old") {
		t.Errorf("without Kueue: %v", err)
	}
	mapper.Add(checkKind, meta.RESTScopeRoot)
	mapper.Add(workloadKind, meta.RESTScopeNamespace)
	if err := r.findKueue(context.Background(), mapper, r.Client); err != nil {
		t.Errorf("with Kueue: %v", err)
	}
}
