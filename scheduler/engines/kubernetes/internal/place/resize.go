package place

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

// An elastic gang is one Indexed Job. Its size follows the attempt's plan: Kubernetes ends the pods with the highest
// indexes, or makes more, and each pod has the rank of its index. The Job's annotations have the plan and the resizes,
// which change in the same request as the size.

// refusedResize is a resize of which the allocator is to be told that it will not be carried out.
type refusedResize struct {
	number int64
	reason string
}

// takeResize notes that the attempt is to have another plan, or why it cannot.
func (a *Attempt) takeResize(number int64, plan []Slot, gang *Gang) {
	kept := min(len(plan), len(a.Plan))
	reason := ""
	switch {
	case gang.elastic() == nil:
		reason = "the gang is not one Job with the annotation " + elasticAnnotation
	case !slices.Equal(plan[:kept], a.Plan[:kept]):
		reason = "pods would come or go that are not the last ones"
	}
	if reason != "" {
		a.refused = &refusedResize{number, reason}
		return
	}
	a.refused = nil
	a.resize.Wanted = number
	a.shortenTo(kept)
	a.Plan = slices.Clone(plan)
	a.pods = append(a.pods, make([]types.UID, len(plan)-kept)...)
	a.ended = append(a.ended, make([]bool, len(plan)-kept)...)
}

// shortenTo gives up the pods of the last ranks.
func (a *Attempt) shortenTo(pods int) {
	for rank := pods; rank < len(a.Plan); rank++ {
		if uid := a.pods[rank]; uid != "" {
			a.leaving[uid] = rank
		}
	}
	a.Plan, a.pods, a.ended = a.Plan[:pods], a.pods[:pods], a.ended[:pods]
	a.resize.Pods = min(a.resize.Pods, pods)
}

// refuseScale notes that the API server does not give the Job the size of the plan.
func (a *Attempt) refuseScale(reason string) {
	if !a.Begun {
		a.Undo = &Undo{Rejected, shortened(reason)}
	} else if a.resize.Wanted > a.resize.Done {
		a.giveUpResize(reason)
	}
}

// giveUpResize goes on without the growth under way. If the resize was to remove pods, the allocator stops the attempt.
func (a *Attempt) giveUpResize(reason string) {
	a.refused = &refusedResize{a.resize.Wanted, reason}
	a.resize.Wanted = a.resize.Done
	a.shortenTo(a.resize.Pods)
}

// hasSucceeded tells whether a pod has succeeded that was not told to leave.
func (a *Attempt) hasSucceeded(gang *Gang) bool {
	return slices.ContainsFunc(gang.Pods, func(pod *Pod) bool {
		return pod.Attempt == a.Key && pod.Phase == corev1.PodSucceeded && !pod.Deleting
	})
}

// hasLeft tells whether a resize has given up a pod of the attempt.
func (a *Attempt) hasLeft(pod *Pod) bool {
	_, leaves := a.leaving[pod.UID]
	return leaves || (pod.Attempt == a.Key && pod.Rank >= len(a.Plan))
}

// noteLeaving notes which pods that were given up are still there. Pods on lost nodes are not waited for.
func (a *Attempt) noteLeaving(gang *Gang, nodes Nodes) {
	before := maps.Clone(a.leaving)
	clear(a.leaving)
	for _, pod := range gang.Pods {
		rank, leaves := before[pod.UID]
		if pod.Attempt == a.Key && pod.Rank >= len(a.Plan) {
			rank, leaves = pod.Rank, true
		}
		isLost := pod.Node != "" && nodes.state(pod.Node) == NodeLost
		if leaves && !isLost && (pod.Deleting || !pod.hasEnded()) {
			a.leaving[pod.UID] = rank
		}
	}
}

// size returns how many pods the Job is to have now. If the attempt has grown again, pods that leave go first: while
// they are there, Kubernetes would count their indexes as done, or let them go on.
func (a *Attempt) size() int {
	size := len(a.Plan)
	for _, rank := range a.leaving {
		size = min(size, rank)
	}
	return size
}

// scale returns the step that gives the Job the size of the plan, or writes down how far a resize has come.
func (a *Attempt) scale(gang *Gang) []Step {
	job := gang.elastic()
	if job == nil || job.Suspended || job.Finishing || job.hasFinished() {
		return nil
	}
	step := Step{Kind: ScaleJob, Job: job, Size: a.size(), Resize: a.resize}
	if step.Size < len(a.Plan) {
		step.Resize.Wanted = a.resize.Done // The allocator repeats the resize if this process is gone by then.
	}
	hasSize := job.Pods == step.Size && job.HasIndexes
	if !a.Begun {
		step.Resize = Resize{}
	} else if step.Resize.Wanted > 0 || job.Attempt == a.Key {
		hasSize = hasSize && job.Attempt == a.Key && job.Resize == step.Resize
	}
	if hasSize {
		return nil
	}
	return []Step{step}
}

// resume returns the step that lets a Job make its pods.
func (a *Attempt) resume(gang *Gang, job *Job) Step {
	step := Step{Kind: ResumeJob, Job: job}
	if gang.elastic() != nil {
		step.Size = len(a.Plan)
	}
	return step
}

// noteResized notes whether the resize under way has been carried out.
func (a *Attempt) noteResized(gang *Gang, byRank []*Pod) {
	if !a.Begun || (a.resize.Done == a.resize.Wanted && a.resize.Pods == len(a.Plan)) {
		return
	}
	hasBegun := func(rank int) bool {
		pod := byRank[rank]
		runs := pod != nil && pod.Phase == corev1.PodRunning && !pod.Deleting && pod.Node == a.Plan[rank].Node
		return runs || a.ended[rank]
	}
	for rank := a.resize.Pods; rank < len(a.Plan); rank++ {
		if hasBegun(rank) {
			continue
		}
		if a.hasSucceeded(gang) {
			a.giveUpResize("a pod has succeeded: the Job is about to end")
		}
		return
	}
	if len(a.leaving) == 0 && len(a.scale(gang)) == 0 {
		a.resize.Done, a.resize.Pods = a.resize.Wanted, len(a.Plan)
	}
}

// done returns the number of the last resize of which the Job's annotations say that it was carried out.
func (a *Attempt) done(gang *Gang) int64 {
	if job := gang.elastic(); job != nil && job.Attempt == a.Key {
		return min(job.Resize.Done, a.resize.Done)
	}
	return 0
}

// started returns the event that the attempt runs, or goes on after a resize; nil: that was told.
func (a *Attempt) started(gang *Gang) *allocator.EngineEvent {
	done := a.done(gang)
	kind := "started"
	if slices.Contains([]string{"started", "resized", "resize_refused"}, a.told.Kind) {
		if done <= a.toldDone {
			return nil
		}
		kind = "resized"
	}
	return a.event(allocator.EngineEvent{Kind: kind, Resize: done})
}

// restoreResize takes what a former process has noted of the attempt's resizes.
func (a *Attempt) restoreResize(gang *Gang) {
	if job := gang.elastic(); job != nil && job.Attempt == a.Key && job.Resize.Pods > 0 {
		a.resize, a.Begun = job.Resize, true
		a.resize.Pods = min(a.resize.Pods, len(a.Plan))
	}
}
