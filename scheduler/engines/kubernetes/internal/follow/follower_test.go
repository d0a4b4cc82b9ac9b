package follow

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// fakeAllocator keeps registrations as the real one does.
type fakeAllocator struct {
	started  int64
	datasets []string
	jobs     map[string]*allocator.Job
	gpus     map[string]map[string]int64
	changes  int
	fails    error
}

func newFakeAllocator() *fakeAllocator {
	fake := &fakeAllocator{started: 1, datasets: []string{"images", "texts"}}
	fake.forget()
	return fake
}

func (f *fakeAllocator) forget() {
	f.jobs, f.gpus = make(map[string]*allocator.Job), make(map[string]map[string]int64)
}

func (f *fakeAllocator) Status(context.Context) (allocator.Status, error) {
	return allocator.Status{StartedUnixMs: f.started}, f.fails
}

func (f *fakeAllocator) Jobs(context.Context) ([]allocator.Job, error) {
	rows := make([]allocator.Job, 0, len(f.jobs))
	for name, job := range f.jobs {
		row := *job
		row.Nodes = slices.Sorted(maps.Keys(f.gpus[name]))
		rows = append(rows, row)
	}
	return rows, nil
}

func (f *fakeAllocator) Register(_ context.Context, job allocator.Registration) error {
	f.changes++
	if !slices.Contains(f.datasets, job.Dataset) {
		return &wire.StatusError{Status: http.StatusNotFound, Message: "no node has the dataset"}
	}
	if _, is := f.jobs[job.Name]; is {
		return &wire.StatusError{Status: http.StatusConflict, Message: "the job is registered already"}
	}
	f.jobs[job.Name] = &allocator.Job{Name: job.Name, Registered: true, Dataset: job.Dataset, User: job.User}
	f.gpus[job.Name] = make(map[string]int64)
	return nil
}

func (f *fakeAllocator) Remove(_ context.Context, job string) error {
	f.changes++
	delete(f.jobs, job)
	delete(f.gpus, job)
	return nil
}

func (f *fakeAllocator) Place(_ context.Context, job, node string, gpus *int64) error {
	f.changes++
	if _, is := f.jobs[job]; !is {
		return &wire.StatusError{Status: http.StatusNotFound, Message: "the job is not registered"}
	}
	if gpus == nil {
		delete(f.gpus[job], node)
	} else {
		f.gpus[job][node] = *gpus
	}
	return nil
}

const name = NamePrefix + "team.train"

func wanted(dataset string, nodes map[string]int64) map[string]Job {
	return map[string]Job{name: {Name: name, Dataset: dataset, Nodes: nodes}}
}

func sync(t *testing.T, follower *Follower, jobs map[string]Job) {
	t.Helper()
	if err := follower.Sync(context.Background(), jobs); err != nil {
		t.Fatal(err)
	}
}

func expectNodes(t *testing.T, fake *fakeAllocator, want map[string]int64) {
	t.Helper()
	if got := fake.gpus[name]; !maps.Equal(got, want) {
		t.Errorf("GPUs by node are %v, want %v", got, want)
	}
}

func TestJobIsRegisteredPlacedAndRemoved(t *testing.T) {
	fake := newFakeAllocator()
	follower := NewFollower(fake)
	sync(t, follower, wanted("images", map[string]int64{"n1": 2, "n2": 4}))
	expectNodes(t, fake, map[string]int64{"n1": 2, "n2": 4})
	sync(t, follower, wanted("images", map[string]int64{"n2": 8}))
	expectNodes(t, fake, map[string]int64{"n2": 8})
	sync(t, follower, nil)
	if len(fake.jobs) != 0 {
		t.Errorf("jobs are left: %v", fake.jobs)
	}
}

func TestUnchangedJobsCostNoRequest(t *testing.T) {
	fake := newFakeAllocator()
	follower := NewFollower(fake)
	jobs := wanted("images", map[string]int64{"n1": 2})
	sync(t, follower, jobs)
	before := fake.changes
	sync(t, follower, jobs)
	if fake.changes != before {
		t.Errorf("%d requests, want none", fake.changes-before)
	}
}

func TestNewFollowerEndsWhatTheOldOneTold(t *testing.T) {
	fake := newFakeAllocator()
	sync(t, NewFollower(fake), wanted("images", map[string]int64{"n1": 2, "n2": 2}))
	fake.jobs[NamePrefix+"team.orphan"] = &allocator.Job{Name: NamePrefix + "team.orphan", Registered: true}
	sync(t, NewFollower(fake), wanted("images", map[string]int64{"n2": 2}))
	expectNodes(t, fake, map[string]int64{"n2": 2})
	if len(fake.jobs) != 1 {
		t.Errorf("the orphan is left: %v", fake.jobs)
	}
}

func TestRestartedAllocatorIsToldAgain(t *testing.T) {
	fake := newFakeAllocator()
	follower := NewFollower(fake)
	jobs := wanted("images", map[string]int64{"n1": 2})
	sync(t, follower, jobs)
	// Its state is older than what it was told last.
	fake.started, fake.gpus[name] = 2, map[string]int64{"n1": 1}
	sync(t, follower, jobs)
	expectNodes(t, fake, map[string]int64{"n1": 2})
	fake.started = 3
	fake.forget()
	sync(t, follower, jobs)
	expectNodes(t, fake, map[string]int64{"n1": 2})
}

func TestOtherDatasetRegistersAnew(t *testing.T) {
	fake := newFakeAllocator()
	follower := NewFollower(fake)
	sync(t, follower, wanted("images", map[string]int64{"n1": 2}))
	sync(t, follower, wanted("texts", map[string]int64{"n1": 2}))
	if got := fake.jobs[name].Dataset; got != "texts" {
		t.Errorf("the dataset is %q, want texts", got)
	}
	expectNodes(t, fake, map[string]int64{"n1": 2})
}

func TestJobsOfOthersStay(t *testing.T) {
	fake := newFakeAllocator()
	fake.jobs["slurm-1"] = &allocator.Job{Name: "slurm-1", Registered: true}
	fake.jobs[NamePrefix+"read"] = &allocator.Job{Name: NamePrefix + "read"}
	sync(t, NewFollower(fake), nil)
	if len(fake.jobs) != 2 {
		t.Errorf("jobs are %v, want both", fake.jobs)
	}
}

func TestOneFailureDoesNotStopOthers(t *testing.T) {
	fake := newFakeAllocator()
	jobs := wanted("images", map[string]int64{"n1": 2})
	jobs[NamePrefix+"a"] = Job{Name: NamePrefix + "a", Dataset: "imagenot", Nodes: map[string]int64{"n1": 1}}
	if err := NewFollower(fake).Sync(context.Background(), jobs); !wire.IsStatus(err, http.StatusNotFound) {
		t.Errorf("the error is %v, want HTTP 404", err)
	}
	expectNodes(t, fake, map[string]int64{"n1": 2})
}

func TestAllocatorThatIsAwayIsAnError(t *testing.T) {
	fake := newFakeAllocator()
	fake.fails = errors.New("no answer")
	if err := NewFollower(fake).Sync(context.Background(), nil); !errors.Is(err, fake.fails) {
		t.Errorf("the error is %v, want that of the request", err)
	}
}

func TestJobsThatTheAllocatorPlacesAreLeftToItsScheduler(t *testing.T) {
	const placed = "kubernetes-team.placed"
	running := map[string]Job{placed: {Name: placed, Dataset: "images", Nodes: map[string]int64{"n1": 2}}}
	fake := newFakeAllocator()
	follower := NewFollower(fake)
	follower.IsPlaced = func(name string) bool { return name == placed }
	for _, registered := range []bool{true, false} {
		delete(fake.jobs, placed)
		if registered {
			fake.jobs[placed] = &allocator.Job{Name: placed, Registered: true}
		}
		for _, wanted := range []map[string]Job{{}, running} {
			if err := follower.Sync(context.Background(), wanted); err != nil {
				t.Fatal(err)
			}
			if job := fake.jobs[placed]; (job != nil) != registered || (job != nil && job.Dataset != "") {
				t.Errorf("the job is %+v, want it as it was", job)
			}
		}
	}
}

func TestJobsWhosePodsAreStillToComeStay(t *testing.T) {
	const waiting = "kubernetes-team.waiting"
	fake := newFakeAllocator()
	fake.jobs[waiting] = &allocator.Job{Name: waiting, Registered: true}
	follower := NewFollower(fake)
	follower.Keeps = func(name string) bool { return name == waiting }
	for _, step := range []struct {
		wanted map[string]Job
		want   string
	}{
		{map[string]Job{}, ""},
		{map[string]Job{waiting: {Name: waiting, Dataset: "images"}}, "images"},
	} {
		if err := follower.Sync(context.Background(), step.wanted); err != nil {
			t.Fatal(err)
		}
		if job := fake.jobs[waiting]; job == nil || job.Dataset != step.want {
			t.Errorf("the job is %+v, want the dataset %q", job, step.want)
		}
	}
}
