package node

import (
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

// SetUp registers a Keeper with a manager. It runs every interval, because larderd may have restarted, and tasks end
// without an event in Kubernetes.
func (k *Keeper) SetUp(manager ctrl.Manager, interval time.Duration) error {
	return loop.SetUp(manager, "node", interval, k.Compare, loop.Watched{Object: &v1alpha1.Dataset{}})
}
