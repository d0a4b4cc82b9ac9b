package datasets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

// Allocator is what this package needs of the allocator's API.
type Allocator interface {
	Datasets(ctx context.Context) ([]allocator.Dataset, error)
	Pin(ctx context.Context, dataset string, bytes int64) error
	Unpin(ctx context.Context, dataset string) error
}

// Reconciler compares the Datasets with the allocator's datasets.
type Reconciler struct {
	Client    client.Client
	Allocator Allocator
}

// SetUp registers the comparison with a manager. Caches fill without an event in Kubernetes, so it runs every interval.
func (r *Reconciler) SetUp(manager ctrl.Manager, interval time.Duration) error {
	changed := predicate.GenerationChangedPredicate{} // Status changes are our own.
	return loop.SetUp(manager, "datasets", interval, r.Compare, loop.Watched{Object: &v1alpha1.Dataset{}, Which: changed})
}

// Compare pins quotas and writes what has changed to the status of each Dataset.
func (r *Reconciler) Compare(ctx context.Context) error {
	var list v1alpha1.DatasetList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list the Datasets: %w", err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	rows, err := r.Allocator.Datasets(ctx)
	if err != nil {
		return fmt.Errorf("list the allocator's datasets: %w", err)
	}
	known := make(map[string]*allocator.Dataset, len(rows))
	for i := range rows {
		known[rows[i].Name] = &rows[i]
	}
	var failed []error
	for i := range list.Items {
		if err := r.update(ctx, &list.Items[i], known[list.Items[i].Name]); err != nil {
			failed = append(failed, fmt.Errorf("Dataset %s: %w", list.Items[i].Name, err))
		}
	}
	return errors.Join(failed...)
}

func (r *Reconciler) update(ctx context.Context, dataset *v1alpha1.Dataset, row *allocator.Dataset) error {
	before := dataset.DeepCopy()
	dataset.Status = statusOf(dataset, row)
	var failed error
	if row != nil {
		failed = r.pin(ctx, dataset, row)
	}
	if equality.Semantic.DeepEqual(before.Status, dataset.Status) {
		return failed
	}
	if err := r.Client.Status().Patch(ctx, dataset, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return errors.Join(failed, fmt.Errorf("write the status: %w", err))
	}
	return failed
}

// pin makes the allocator's pin that of the spec. It leaves pins alone that this program has not set.
func (r *Reconciler) pin(ctx context.Context, dataset *v1alpha1.Dataset, row *allocator.Dataset) error {
	status := &dataset.Status
	if dataset.Spec.Quota == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.DatasetPinned)
		if status.PinnedBytes == 0 {
			return nil
		}
		if err := r.Allocator.Unpin(ctx, dataset.Name); err != nil {
			return fmt.Errorf("release the pinned quota: %w", err)
		}
		status.PinnedBytes = 0
		return nil
	}
	wanted := dataset.Spec.Quota.Value()
	var failed error
	if row.PinnedBytes == nil || *row.PinnedBytes != wanted {
		failed = r.Allocator.Pin(ctx, dataset.Name, wanted)
	}
	condition := metav1.Condition{Type: v1alpha1.DatasetPinned, ObservedGeneration: dataset.Generation}
	if failed == nil {
		status.PinnedBytes = wanted
		condition.Status, condition.Reason = metav1.ConditionTrue, "Pinned"
		condition.Message = "The plan keeps the quota."
	} else {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Refused", failed.Error()
		failed = fmt.Errorf("pin the quota: %w", failed)
	}
	meta.SetStatusCondition(&status.Conditions, condition)
	return failed
}
