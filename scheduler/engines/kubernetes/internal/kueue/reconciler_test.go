package kueue

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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
}

func (f *fakeAllocator) Status(context.Context) (allocator.Status, error) {
	return allocator.Status{RemoteBytesPerSecond: 1e9}, nil
}

func (f *fakeAllocator) Nodes(context.Context) ([]allocator.Node, error) {
	return []allocator.Node{
		{Name: "n1", Alive: true, Capacity: allocator.Tiers{MemoryBytes: gib, DiskBytes: gib}},
		{Name: "n2", Alive: true, Capacity: allocator.Tiers{DiskBytes: 2 * gib}},
	}, nil
}

func (f *fakeAllocator) Datasets(context.Context) ([]allocator.Dataset, error) {
	return []allocator.Dataset{
		{Name: "images", Nodes: []allocator.DatasetNode{{Name: "n1"}, {Name: "n2"}}},
		{Name: "near", Nodes: []allocator.DatasetNode{{Name: "n2"}}},
	}, nil
}

func (f *fakeAllocator) Jobs(context.Context) ([]allocator.Job, error) {
	rows := make([]allocator.Job, 0, len(f.jobs))
	for _, job := range f.jobs {
		row := *job
		row.Staged = f.staged
		rows = append(rows, row)
	}
	return rows, nil
}

func (f *fakeAllocator) Register(_ context.Context, job allocator.Registration) error {
	f.jobs[job.Name] = &allocator.Job{Name: job.Name, Dataset: job.Dataset, User: job.User, Registered: true}
	return nil
}

func (f *fakeAllocator) Reserve(_ context.Context, job string, asked allocator.Reservation) error {
	if f.isFull {
		return &wire.StatusError{Status: http.StatusInsufficientStorage, Message: "all is reserved"}
	}
	f.jobs[job].CacheBytes, f.jobs[job].BandwidthBytesPerSecond = asked.CacheBytes, asked.BandwidthBytesPerSecond
	return nil
}

func (f *fakeAllocator) Remove(_ context.Context, job string) error {
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
	objects := []client.Object{own, other, late}
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
	if got := answer(t, r, "job-train"); got.State != statePending || !strings.Contains(got.Message, "The cache fills.") {
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
			sets: one("images", 5, "1", ""), state: stateRejected, text: "5 GiB of 4 GiB",
		},
		"endless cache": {
			sets: one("images", 9, "9E", ""), state: stateRejected, text: "more than the nodes",
		},
		"too much bandwidth": {
			sets: one("images", 2, "", "4001"), state: stateRejected, text: "8002 of 8000",
		},
		"unknown dataset": {
			sets: one("imagenot", 1, "", ""), state: stateRejected, text: "no such Dataset",
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
	owner.APIVersion, owner.Kind = "jobset.x-k8s.io/v1alpha2", "JobSet"
	if _, err := requestOf(made); err == nil {
		t.Error("the pods of a JobSet have several owners")
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
