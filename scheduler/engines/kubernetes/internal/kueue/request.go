package kueue

import (
	"errors"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
	"larder.io/larder/scheduler/engines/kubernetes/internal/place"
)

// Resources that pods request, and quotas of Kueue count. No node has them: the chart's admission policy removes them
// from pods before the scheduler sees them.
const (
	// CacheResource is the cache that is kept for the dataset, in GiB.
	CacheResource = corev1.ResourceName("larder.io/cache-gib")
	// RemoteResource is the least remote bandwidth, in megabits a second.
	RemoteResource = corev1.ResourceName("larder.io/remote-mbps")
)

const bytesPerSecondOfMbps = 1e6 / 8

// request is what a Workload asks for. Without a job there is nothing to reserve.
type request struct {
	job     string
	dataset string
	user    *int64
	allocator.Reservation
}

// add joins what two parts of one job ask for. All pods of a job read one dataset.
func (r *request) add(other *request) error {
	if r.dataset != other.dataset {
		return fmt.Errorf("job %s reads dataset %q already, and a job reads one dataset", r.job, r.dataset)
	}
	r.Reservation = joined(r.Reservation, other.Reservation)
	return nil
}

func joined(a, b allocator.Reservation) allocator.Reservation {
	return allocator.Reservation{
		CacheBytes:              sum(a.CacheBytes, b.CacheBytes),
		BandwidthBytesPerSecond: a.BandwidthBytesPerSecond + b.BandwidthBytesPerSecond,
	}
}

// covers tells whether a reservation is no less than another.
func covers(a, b allocator.Reservation) bool {
	return a.CacheBytes >= b.CacheBytes && a.BandwidthBytesPerSecond >= b.BandwidthBytesPerSecond
}

// requestOf reads what a Workload asks for. An error says what is wrong with the Workload.
func requestOf(w *workload) (request, error) {
	var made request
	for i := range w.Spec.PodSets {
		one, err := requestOfSet(w, &w.Spec.PodSets[i])
		if err != nil {
			return request{}, err
		}
		if one.job == "" {
			continue
		}
		if made.job == "" {
			made = one
			continue
		}
		if made.job != one.job {
			return request{}, fmt.Errorf("its pods are of several jobs, %s and %s: give all of them one label %s",
				made.job, one.job, follow.JobLabel)
		}
		if err := made.add(&one); err != nil {
			return request{}, err
		}
	}
	return made, nil
}

func requestOfSet(w *workload, set *podSet) (request, error) {
	resources := follow.RequestsOf(&set.Template.Spec)
	cache, remote := resources[CacheResource], resources[RemoteResource]
	for name, asked := range map[corev1.ResourceName]resource.Quantity{CacheResource: cache, RemoteResource: remote} {
		if asked.Sign() < 0 {
			return request{}, fmt.Errorf("its pods %q request %s of %s, which is less than none", set.Name, asked.String(), name)
		}
	}
	dataset := set.Template.Labels[follow.DatasetLabel]
	if dataset == "" {
		if cache.IsZero() && remote.IsZero() {
			return request{}, nil
		}
		return request{}, fmt.Errorf("its pods %q request %s or %s without the label %s",
			set.Name, CacheResource, RemoteResource, follow.DatasetLabel)
	}
	if isGated(&set.Template.Spec) {
		return request{}, nil // The allocator starts the job, and reserves for it then.
	}
	job, err := jobOf(w, set)
	if err != nil {
		return request{}, err
	}
	pods := w.podsOf(set)
	return request{
		job:     job,
		dataset: dataset,
		user:    follow.UserOf(&set.Template.Spec),
		Reservation: allocator.Reservation{
			CacheBytes:              product(product(cache.Value(), pods), 1<<30),
			BandwidthBytesPerSecond: float64(remote.Value()) * float64(pods) * bytesPerSecondOfMbps,
		},
	}, nil
}

func isGated(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool {
		return gate.Name == place.Gate
	})
}

var errNoJob = errors.New("only the pods of a Job or a JobSet are a job by themselves: give the pods the label " + follow.JobLabel)

// jobOf returns the name under which the loaders of the pods will connect: see follow.JobName.
func jobOf(w *workload, set *podSet) (string, error) {
	if label := follow.LabelledJob(set.Template.Labels); label != "" {
		return follow.NamePrefix + w.Metadata.Namespace + "." + label, nil
	}
	owner := metav1.GetControllerOf(&w.Metadata)
	if owner == nil || !place.IsJob(owner) && !place.IsJobSet(owner) {
		return "", errNoJob
	}
	return follow.NamePrefix + w.Metadata.Namespace + "." + owner.Name, nil
}

// product and sum stay at the largest number, which is more than there is.
func product(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
