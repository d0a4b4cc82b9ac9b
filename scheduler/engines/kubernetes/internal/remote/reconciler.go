// Package remote applies RemoteBudgets: the remote bandwidth that the allocator divides among jobs.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

// Finalizer keeps an applied RemoteBudget until the allocator has its own value again.
const Finalizer = "larder.io/remote-budget"

// Allocator is what this package needs of the allocator's API.
type Allocator interface {
	Status(ctx context.Context) (allocator.Status, error)
	SetRemote(ctx context.Context, bytesPerSecond int64) error
	ResetRemote(ctx context.Context) error
}

// Reconciler compares the RemoteBudgets with the allocator's remote bandwidth.
type Reconciler struct {
	Client    client.Client
	Allocator Allocator
}

// SetUp registers the comparison with a manager. It runs every interval, because others may set the bandwidth, too.
func (r *Reconciler) SetUp(manager ctrl.Manager, interval time.Duration) error {
	changed := predicate.GenerationChangedPredicate{}
	watched := loop.Watched{Object: &v1alpha1.RemoteBudget{}, Which: changed}
	return loop.SetUp(manager, "remote-budgets", interval, r.Compare, watched)
}

// Compare applies the oldest RemoteBudget that is not being deleted.
func (r *Reconciler) Compare(ctx context.Context) error {
	var list v1alpha1.RemoteBudgetList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list the RemoteBudgets: %w", err)
	}
	budgets := list.Items
	slices.SortFunc(budgets, func(a, b v1alpha1.RemoteBudget) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	first := slices.IndexFunc(budgets, func(budget v1alpha1.RemoteBudget) bool { return budget.DeletionTimestamp == nil })
	var failed []error
	for i := range budgets {
		budget := &budgets[i]
		var err error
		switch {
		case budget.DeletionTimestamp != nil:
			err = r.release(ctx, budget, first < 0)
		case i == first:
			err = r.apply(ctx, budget)
		default:
			message := "An older RemoteBudget is applied: " + budgets[first].Name
			err = r.report(ctx, budget, metav1.ConditionFalse, "NotOldest", message)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("RemoteBudget %s: %w", budget.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (r *Reconciler) apply(ctx context.Context, budget *v1alpha1.RemoteBudget) error {
	before := budget.DeepCopy()
	if controllerutil.AddFinalizer(budget, Finalizer) {
		if err := r.Client.Patch(ctx, budget, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("add the finalizer: %w", err)
		}
	}
	wanted := budget.Spec.BytesPerSecond.Value()
	status, err := r.Allocator.Status(ctx)
	if err == nil && status.RemoteBytesPerSecond != float64(wanted) {
		err = r.Allocator.SetRemote(ctx, wanted)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set the remote bandwidth: %w", err),
			r.report(ctx, budget, metav1.ConditionFalse, "Refused", err.Error()))
	}
	return r.report(ctx, budget, metav1.ConditionTrue, "Applied", "The allocator plans with the budget.")
}

func (r *Reconciler) release(ctx context.Context, budget *v1alpha1.RemoteBudget, last bool) error {
	before := budget.DeepCopy()
	if !controllerutil.RemoveFinalizer(budget, Finalizer) {
		return nil
	}
	if last {
		if err := r.Allocator.ResetRemote(ctx); err != nil {
			return fmt.Errorf("reset the remote bandwidth: %w", err)
		}
	}
	if err := r.Client.Patch(ctx, budget, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	return nil
}

func (r *Reconciler) report(ctx context.Context, budget *v1alpha1.RemoteBudget, status metav1.ConditionStatus,
	reason, message string) error {
	before := budget.DeepCopy()
	meta.SetStatusCondition(&budget.Status.Conditions, metav1.Condition{
		Type: v1alpha1.BudgetApplied, Status: status, Reason: reason, Message: message, ObservedGeneration: budget.Generation,
	})
	if equality.Semantic.DeepEqual(before.Status, budget.Status) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, budget, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
