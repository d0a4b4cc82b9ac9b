package follow

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

// SetUp registers the comparison of the cluster's pods with the allocator's jobs. It runs at each change of a pod, and
// every interval, because the allocator may have restarted.
func SetUp(manager ctrl.Manager, follower *Follower, gpuResources []string, interval time.Duration) error {
	compare := func(ctx context.Context) error {
		var pods corev1.PodList
		if err := manager.GetClient().List(ctx, &pods, client.HasLabels{DatasetLabel}); err != nil {
			return fmt.Errorf("list the pods: %w", err)
		}
		return follower.Sync(ctx, JobsOf(pods.Items, gpuResources))
	}
	return loop.SetUp(manager, "jobs", interval, compare, loop.Watched{Object: &corev1.Pod{}})
}
