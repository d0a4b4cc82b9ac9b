package follow

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

func hasDataset(object client.Object) bool { return object.GetLabels()[DatasetLabel] != "" }

// followed selects the changes of pods that have, or had, a dataset. The cache may have all pods of the cluster.
var followed = predicate.Funcs{
	CreateFunc: func(change event.CreateEvent) bool { return hasDataset(change.Object) },
	UpdateFunc: func(change event.UpdateEvent) bool {
		return hasDataset(change.ObjectOld) || hasDataset(change.ObjectNew)
	},
	DeleteFunc:  func(change event.DeleteEvent) bool { return hasDataset(change.Object) },
	GenericFunc: func(change event.GenericEvent) bool { return hasDataset(change.Object) },
}

// SetUp registers the comparison of the cluster's pods with the allocator's jobs. It runs at each change of a pod with
// a dataset, and every interval, because the allocator may have restarted.
func SetUp(manager ctrl.Manager, follower *Follower, gpuResources []string, interval time.Duration) error {
	compare := func(ctx context.Context) error {
		var pods corev1.PodList
		if err := manager.GetClient().List(ctx, &pods, client.HasLabels{DatasetLabel}); err != nil {
			return fmt.Errorf("list the pods: %w", err)
		}
		return follower.Sync(ctx, JobsOf(pods.Items, gpuResources))
	}
	return loop.SetUp(manager, "jobs", interval, compare, loop.Watched{Object: &corev1.Pod{}, Which: followed})
}
