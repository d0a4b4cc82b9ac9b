package follow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

// Allocator is what a Follower needs of the allocator's API.
type Allocator interface {
	Status(ctx context.Context) (allocator.Status, error)
	Jobs(ctx context.Context) ([]allocator.Job, error)
	Register(ctx context.Context, job allocator.Registration) error
	Remove(ctx context.Context, job string) error
	Place(ctx context.Context, job, node string, gpus *int64) error
}

// Follower makes the allocator's jobs those that run. It compares the whole, so that nothing is lost whoever restarts:
// every difference is seen again at the next comparison, and every request may be repeated. One goroutine at a time.
type Follower struct {
	allocator Allocator
	// The GPUs by job and node that this process has told the allocator which started at this time.
	started int64
	told    map[string]map[string]int64
	// IsPlaced tells whether the allocator itself starts and ends a job of this name. Nil: it does so for none. The
	// allocator's scheduler registers these jobs, with what they were submitted with: f* and epochs.
	IsPlaced func(name string) bool
	// Keeps tells whether a job of this name is registered for pods that are still to come. Nil: none is.
	Keeps func(name string) bool
}

// NewFollower makes a Follower that has told nothing yet.
func NewFollower(api Allocator) *Follower {
	return &Follower{allocator: api, told: make(map[string]map[string]int64)}
}

// Sync makes the allocator know exactly these jobs among those that come from Kubernetes. A job that fails does not stop
// the others; all errors are returned together.
func (f *Follower) Sync(ctx context.Context, wanted map[string]Job) error {
	status, err := f.allocator.Status(ctx)
	if err != nil {
		return fmt.Errorf("ask the allocator for its status: %w", err)
	}
	if status.StartedUnixMs != f.started {
		// The allocator may run on another state than before.
		f.started = status.StartedUnixMs
		clear(f.told)
	}
	rows, err := f.allocator.Jobs(ctx)
	if err != nil {
		return fmt.Errorf("list the allocator's jobs: %w", err)
	}
	known := make(map[string]allocator.Job)
	var failed []error
	for _, row := range rows {
		if !row.Registered || !strings.HasPrefix(row.Name, NamePrefix) || f.isPlaced(row.Name) {
			continue
		}
		if job, runs := wanted[row.Name]; runs && job.Dataset == row.Dataset {
			known[row.Name] = row
			continue
		} else if !runs && f.Keeps != nil && f.Keeps(row.Name) {
			continue // Its pods are not there yet.
		}
		if err := f.allocator.Remove(ctx, row.Name); err != nil {
			failed = append(failed, fmt.Errorf("remove job %s: %w", row.Name, err))
			known[row.Name] = row
		}
	}
	maps.DeleteFunc(f.told, func(name string, _ map[string]int64) bool { _, is := known[name]; return !is })
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if f.isPlaced(name) {
			continue
		}
		row, registered := known[name]
		if err := f.syncJob(ctx, wanted[name], row, registered); err != nil {
			failed = append(failed, fmt.Errorf("job %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func (f *Follower) isPlaced(name string) bool { return f.IsPlaced != nil && f.IsPlaced(name) }

func (f *Follower) syncJob(ctx context.Context, job Job, row allocator.Job, registered bool) error {
	if !registered {
		registration := allocator.Registration{Name: job.Name, Dataset: job.Dataset, User: job.User}
		if err := f.allocator.Register(ctx, registration); err != nil {
			return fmt.Errorf("register: %w", err)
		}
	}
	told := f.told[job.Name]
	if told == nil {
		told = make(map[string]int64)
		f.told[job.Name] = told
	}
	for _, node := range slices.Sorted(maps.Keys(job.Nodes)) {
		gpus := job.Nodes[node]
		if before, is := told[node]; is && before == gpus {
			continue
		}
		if err := f.allocator.Place(ctx, job.Name, node, &gpus); err != nil {
			return fmt.Errorf("place on node %s: %w", node, err)
		}
		told[node] = gpus
	}
	// The row has the nodes that an earlier process has told.
	left := slices.Concat(slices.Collect(maps.Keys(told)), row.Nodes)
	slices.Sort(left)
	for _, node := range slices.Compact(left) {
		if _, runs := job.Nodes[node]; runs {
			continue
		}
		if err := f.allocator.Place(ctx, job.Name, node, nil); err != nil {
			return fmt.Errorf("end on node %s: %w", node, err)
		}
		delete(told, node)
	}
	return nil
}
