// Package loop runs reconcilers that compare a whole at a time: all pods with all jobs, or all Datasets with all that the
// nodes have. Such a reconciler has one request. It runs at the start, at each change, and again after an interval.
package loop

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// A failed comparison is repeated after these times: the first, doubled each time, up to the last.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 10 * time.Second
)

var request = reconcile.Request{NamespacedName: types.NamespacedName{Name: "all"}}

// Compare does one comparison. It is repeated soon after an error.
type Compare func(ctx context.Context) error

// Watched is a kind of objects whose changes start a comparison.
type Watched struct {
	Object client.Object
	// Changes that count. Nil: all.
	Which predicate.Predicate
}

// SetUp registers a comparison with a manager.
func SetUp(manager ctrl.Manager, name string, interval time.Duration, compare Compare, watched ...Watched) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{request}
	})
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	built := ctrl.NewControllerManagedBy(manager).
		Named(name).
		WithOptions(controller.Options{RateLimiter: limiter}).
		WatchesRawSource(source.Func(
			func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
				queue.Add(request)
				return nil
			}))
	for _, one := range watched {
		which := one.Which
		if which == nil {
			which = predicate.Funcs{}
		}
		built = built.Watches(one.Object, all, builder.WithPredicates(which))
	}
	return built.Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		if err := compare(ctx); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: interval}, nil
	}))
}
