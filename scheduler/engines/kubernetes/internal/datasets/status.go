// Package datasets writes the status of Datasets from what the allocator knows, and pins their quotas.
package datasets

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

// statusOf returns the status of a Dataset, given what the allocator knows of it. row is nil if no node has it.
func statusOf(dataset *v1alpha1.Dataset, row *allocator.Dataset) v1alpha1.DatasetStatus {
	before := dataset.Status.DeepCopy()
	status := v1alpha1.DatasetStatus{Conditions: before.Conditions, PinnedBytes: before.PinnedBytes}
	ready := metav1.Condition{Type: v1alpha1.DatasetReady, ObservedGeneration: dataset.Generation}
	if row == nil {
		ready.Status = metav1.ConditionFalse
		ready.Reason = "NoNode"
		ready.Message = "No node has the dataset yet. If that stays so, the events of the Dataset say why."
		meta.SetStatusCondition(&status.Conditions, ready)
		return status
	}
	status.SizeBytes = row.SizeBytes
	status.CachedBytes = row.CachedBytes
	status.QuotaBytes = row.QuotaBytes
	status.Nodes = int32(len(row.Nodes))
	status.Jobs = row.Jobs
	status.Size = formatBytes(row.SizeBytes)
	status.Cached = formatBytes(row.CachedBytes)
	for _, node := range row.Nodes {
		if cached := node.Cached.MemoryBytes + node.Cached.DiskBytes; cached > 0 {
			if status.CachedBytesByNode == nil {
				status.CachedBytesByNode = make(map[string]int64)
			}
			status.CachedBytesByNode[node.Name] = cached
		}
	}
	ready.Status = metav1.ConditionTrue
	ready.Reason = "OnNodes"
	ready.Message = "At least one node has the dataset."
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}

// formatBytes writes a size with three digits or more, as in "19.5 MiB".
func formatBytes(bytes int64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
