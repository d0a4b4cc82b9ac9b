package place

import (
	"errors"
	"slices"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

const planStepsMax = 100_000

var errNoPlan = errors.New("the pods do not fit on the nodes that were decided")

// planOf divides the GPUs of the tasks among pods of these sizes, so that each pod lies on one node and no GPU is left.
// The slots are in the order of the tasks.
func planOf(tasks []allocator.EngineTask, sizes []int64) ([]Slot, error) {
	sizes = slices.Clone(sizes)
	slices.SortFunc(sizes, func(a, b int64) int { return int(b - a) })
	left := make([]int64, len(tasks))
	var gpus, wanted int64
	for i, task := range tasks {
		left[i] = int64(len(task.GPUs))
		gpus += left[i]
	}
	for _, size := range sizes {
		wanted += size
	}
	if gpus != wanted {
		return nil, errNoPlan
	}
	taken := make([]int, len(sizes))
	steps := 0
	var fits func(pod int) bool
	fits = func(pod int) bool {
		if pod == len(sizes) {
			return true
		}
		var tried []int64
		for i := range left {
			if left[i] < sizes[pod] || slices.Contains(tried, left[i]) {
				continue
			}
			if steps++; steps > planStepsMax {
				return false
			}
			tried = append(tried, left[i])
			taken[pod] = i
			left[i] -= sizes[pod]
			if fits(pod + 1) {
				return true
			}
			left[i] += sizes[pod]
		}
		return false
	}
	if !fits(0) {
		return nil, errNoPlan
	}
	plan := make([]Slot, 0, len(sizes))
	for i, task := range tasks {
		for pod, at := range taken {
			if at == i {
				plan = append(plan, Slot{Node: task.Node, GPUs: sizes[pod]})
			}
		}
	}
	return plan, nil
}
