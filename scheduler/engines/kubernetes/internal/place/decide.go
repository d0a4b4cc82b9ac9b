package place

import (
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

const messageBytesMax = 500

// Reason is why an attempt ends before its pods have.
type Reason string

// The reasons. Each but the first is the kind of the event that reports the end.
const (
	Stopped  Reason = "stopped" // The allocator has asked for that.
	Rejected Reason = "rejected"
	Evicted  Reason = "evicted"
	Lost     Reason = "lost"
)

// Undo ends an attempt.
type Undo struct {
	Reason  Reason
	Message string
}

// Attempt is one start of a gang, as the allocator has decided it.
type Attempt struct {
	Key  Key
	Plan []Slot
	// Set while the attempt is being ended.
	Undo *Undo
	// All pods of the gang have run, since its JobSet has begun anew.
	Begun bool
	// The pod of each rank that this process has seen or placed; empty: none, or it has ended.
	pods []types.UID
	// The ranks of which a pod has ended.
	ended []bool
	// The last event, except its time.
	told allocator.EngineEvent
	// How often the gang's JobSets had begun anew, and the pods that the controllers of JobSets or their Jobs delete:
	// jobset.go.
	restarts int
	replaced map[types.UID]struct{}
	// These fields are of an elastic gang: resize.go.
	resize  Resize
	leaving map[types.UID]int // by pod that was given up and is still there: its rank
	refused *refusedResize
	// The number of the last resize that the allocator knows to be carried out.
	toldDone int64
}

// NewAttempt returns an attempt that has no pods yet.
func NewAttempt(key Key, plan []Slot) *Attempt {
	return &Attempt{
		Key: key, Plan: plan, pods: make([]types.UID, len(plan)), ended: make([]bool, len(plan)),
		replaced: make(map[types.UID]struct{}), resize: Resize{Pods: len(plan)}, leaving: make(map[types.UID]int),
	}
}

// StepKind says what a Step does.
type StepKind int

// The kinds of steps.
const (
	PlacePod      StepKind = iota // Sets the pod's node and removes its gate.
	DeletePod                     // Deletes the pod.
	SuspendJob                    // Suspends the Job, which deletes its pods, and notes why.
	ResumeJob                     // Lets the Job make its pods anew, for the attempt.
	ScaleJob                      // Gives the Job so many pods, and notes the attempt's plan and resizes.
	ForgetSuspend                 // Removes the note why the Job was suspended.
	NoteAttempt                   // Notes the attempt and its plan on a JobSet.
)

// Step is one request to the API server.
type Step struct {
	Kind StepKind
	Pod  *Pod
	Rank int
	Job  *Job
	// The number of pods that an elastic Job gets, and the note of its resizes. 0: the Job keeps its size.
	Size   int
	Resize Resize
}

// Decision is what follows from a state.
type Decision struct {
	Steps []Step
	// Nil: there is nothing to report.
	Event *allocator.EngineEvent
}

// Nodes has the states of nodes. A node that is missing is lost.
type Nodes map[string]NodeState

func (n Nodes) state(name string) NodeState {
	if state, known := n[name]; known {
		return state
	}
	return NodeLost
}

// Decide returns what is to be done for a gang, whose attempt may be nil. It notes in the attempt what it has seen.
// Events are those that the allocator was not told yet: see Attempt.Told.
func Decide(gang *Gang, attempt *Attempt, nodes Nodes) Decision {
	decision := decide(gang, attempt, nodes)
	// The owner has resumed the Job. If the owner suspends it later, the note must not let Larder resume it.
	for _, job := range gang.Jobs {
		isUndone := attempt != nil && attempt.Undo != nil && job.ByUs != nil && job.ByUs.Key == attempt.Key
		if job.ByUs != nil && !job.Suspended && !isUndone {
			decision.Steps = append(decision.Steps, Step{Kind: ForgetSuspend, Job: job})
		}
	}
	return decision
}

// exitCode returns the exit code of the pods that failed by themselves. Pods that are deleted because others failed end
// by a signal, whose code counts only if no other pod has one.
func (a *Attempt) exitCode(gang *Gang) int64 {
	var own, deleted int64
	for _, pod := range gang.Pods {
		switch {
		case a.hasLeft(pod):
		case pod.Deleting:
			deleted = max(deleted, pod.ExitCode)
		default:
			own = max(own, pod.ExitCode)
		}
	}
	if own != 0 {
		return own
	}
	return deleted
}

func decide(gang *Gang, attempt *Attempt, nodes Nodes) Decision {
	if attempt == nil {
		return Decision{Steps: deleteStrays(gang, Key{})}
	}
	var decision Decision
	if ended, failed := gang.hasEnded(); ended {
		code := attempt.exitCode(gang)
		attempt.noteLeaving(gang, nodes)
		switch {
		case len(attempt.leaving) > 0 || gang.isClearing(attempt.Key, nodes):
			return decision // They still have GPUs.
		case !failed:
			code = 0
		case code == 0 && gang.isSeenLate():
			return decision // The pods' watch brings the exit code.
		case code == 0:
			code = 1
		}
		stopping := failed && attempt.Undo != nil && attempt.Undo.Reason == Stopped
		decision.Event = attempt.event(allocator.EngineEvent{Kind: "ended", ExitCode: &code, WasStopping: stopping})
		return decision
	}
	attempt.noteLeaving(gang, nodes)
	byRank, broken := attempt.look(gang)
	if attempt.Undo == nil {
		attempt.noteBegun(gang, byRank)
		attempt.noteResized(gang, byRank)
		attempt.Undo = attempt.findUndo(gang, byRank, broken, nodes)
	}
	if attempt.Undo != nil {
		return attempt.end(gang, byRank, nodes)
	}
	if strays := deleteStrays(gang, attempt.Key); len(strays) > 0 {
		return Decision{Steps: strays}
	}
	for _, job := range gang.Jobs {
		if job.Suspended && job.ByUs != nil {
			decision.Steps = append(decision.Steps, attempt.resume(gang, job))
		}
	}
	if len(decision.Steps) == 0 {
		decision.Steps = attempt.scale(gang)
	}
	if len(decision.Steps) == 0 {
		decision.Steps = attempt.fill(gang, byRank, nodes)
		if len(decision.Steps) > 0 {
			decision.Steps = append(attempt.notes(gang), decision.Steps...)
		}
	}
	decision.Event = attempt.progress(gang, byRank)
	return decision
}

// look returns the pod that each rank has, and whether somebody has deleted one that had not ended. The controller of a
// Job does so itself once a pod has failed: the Job then fails, or makes other pods for the same ranks.
func (a *Attempt) look(gang *Gang) (byRank []*Pod, broken bool) {
	byRank = make([]*Pod, len(a.Plan))
	known := make(map[types.UID]*Pod, len(gang.Pods))
	isFinishing := slices.ContainsFunc(gang.Jobs, func(job *Job) bool { return job.Finishing })
	a.noteRestart(gang)
	for _, pod := range gang.Pods {
		isOurs := pod.Attempt == a.Key && pod.Rank >= 0 && pod.Rank < len(a.Plan) && !a.hasLeft(pod)
		isFinishing = isFinishing || (isOurs && pod.HasOwner && pod.Phase == corev1.PodFailed)
		known[pod.UID] = pod
		switch {
		case !isOurs:
		case pod.hasEnded():
			a.ended[pod.Rank] = a.ended[pod.Rank] || !pod.IsOld
		default:
			a.pods[pod.Rank] = pod.UID
			if pod.MayGo {
				a.replaced[pod.UID] = struct{}{}
			}
		}
	}
	for rank, uid := range a.pods {
		if uid == "" {
			continue
		}
		pod := known[uid]
		// A pod of a growth that somebody deletes is made again, as are those of a Job that finishes.
		_, isReplaced := a.replaced[uid]
		mayGo := isFinishing || isReplaced || rank >= a.resize.Pods
		switch {
		case pod == nil && mayGo:
			a.pods[rank] = ""
			delete(a.replaced, uid)
		case pod == nil:
			broken = true
		case pod.hasEnded():
			a.pods[rank] = ""
		default:
			byRank[rank] = pod
			broken = broken || (pod.Deleting && !mayGo)
		}
	}
	return byRank, broken
}

// Placed notes that a pod was placed, before the watch tells.
func (a *Attempt) Placed(step Step) { a.pods[step.Rank] = step.Pod.UID }

// hasPods tells whether a gate of one of the attempt's pods was removed.
func (a *Attempt) hasPods(gang *Gang) bool {
	return slices.ContainsFunc(a.pods, func(uid types.UID) bool { return uid != "" }) ||
		slices.ContainsFunc(gang.Pods, func(pod *Pod) bool { return pod.Attempt == a.Key })
}

// findUndo returns why the attempt cannot go on; nil: it can.
func (a *Attempt) findUndo(gang *Gang, byRank []*Pod, broken bool, nodes Nodes) *Undo {
	failed := Rejected
	if a.Begun {
		failed = Evicted
	}
	if gang.isSuspendedByOthers() {
		return &Undo{failed, "its Job was suspended"}
	}
	if gang.isGone() || slices.ContainsFunc(gang.Jobs, func(job *Job) bool { return job.Deleting }) {
		return &Undo{failed, "it was deleted"}
	}
	for _, job := range gang.Jobs {
		if job.ByUs != nil && job.ByUs.Key == a.Key {
			return &Undo{job.ByUs.Reason, job.ByUs.Message}
		}
	}
	if undo := a.findBadNode(gang, byRank, nodes); undo != nil {
		return undo
	}
	if broken {
		return &Undo{failed, "a pod was deleted"}
	}
	return nil
}

// findBadNode returns why a node cannot have its pods; nil: all can. Once the gang has begun, a node does not matter
// whose pods have ended, unless a pod that replaces them fits nowhere else.
func (a *Attempt) findBadNode(gang *Gang, byRank []*Pod, nodes Nodes) *Undo {
	lost := Rejected
	if a.Begun {
		lost = Lost
	}
	// The allocator takes a growth back if its node is lost.
	for rank, slot := range a.Plan[:a.resize.Pods] {
		hasPod := a.pods[rank] != ""
		isNeeded := hasPod || (!a.Begun && !a.ended[rank])
		isBound := byRank[rank] != nil && byRank[rank].Node != ""
		switch state := nodes.state(slot.Node); {
		case state == NodeLost && isNeeded:
			return &Undo{lost, "node " + slot.Node + " is lost"}
		case state == NodeDrained && isNeeded && !a.Begun && !isBound:
			return &Undo{Rejected, "node " + slot.Node + " takes no pods"}
		}
	}
	_, left := a.assign(gang, byRank, nodes)
	for _, pod := range left {
		for rank, slot := range a.Plan[:a.resize.Pods] {
			fits := slot.GPUs == pod.Work.GPUs && (gang.elastic() == nil || rank == pod.Index)
			if byRank[rank] == nil && fits && nodes.state(slot.Node) == NodeLost {
				return &Undo{lost, "node " + slot.Node + " is lost"}
			}
		}
	}
	return nil
}

// end makes the attempt's pods go. Jobs are suspended for that: pods that are deleted would count as failed ones. Pods
// on lost nodes are not waited for.
func (a *Attempt) end(gang *Gang, byRank []*Pod, nodes Nodes) Decision {
	var decision Decision
	hasPods := a.hasPods(gang)
	isClear := true
	for _, job := range gang.Jobs {
		if job.Deleting || job.hasFinished() || (job.Suspended && (job.ByUs == nil || job.ByUs.Key == a.Key)) {
			continue
		}
		wasResumed := job.Attempt == a.Key
		if !hasPods && !wasResumed && !job.Suspended {
			continue // Nothing was done for this attempt.
		}
		isClear = false
		decision.Steps = append(decision.Steps, Step{Kind: SuspendJob, Job: job})
	}
	for _, pod := range gang.Pods {
		_, leaves := a.leaving[pod.UID]
		isOurs := pod.Attempt == a.Key || leaves || slices.Contains(a.pods, pod.UID)
		if !isOurs || pod.hasEnded() {
			continue
		}
		if !pod.HasOwner && !pod.Deleting {
			decision.Steps = append(decision.Steps, Step{Kind: DeletePod, Pod: pod})
		}
		if pod.Node == "" || nodes.state(pod.Node) != NodeLost {
			isClear = false
		}
	}
	if isClear {
		decision.Event = a.event(a.endEvent())
	}
	return decision
}

func (a *Attempt) endEvent() allocator.EngineEvent {
	if a.Undo.Reason != Stopped {
		return allocator.EngineEvent{Kind: string(a.Undo.Reason), Message: a.Undo.Message}
	}
	code := int64(0)
	return allocator.EngineEvent{Kind: "ended", ExitCode: &code, WasStopping: true}
}

// fill places gated pods. A gang that has not begun is placed once all its pods are there, unless some of them are made
// only when others run.
func (a *Attempt) fill(gang *Gang, byRank []*Pod, nodes Nodes) []Step {
	steps, _ := a.assign(gang, byRank, nodes)
	present := len(steps)
	for _, pod := range byRank {
		if pod != nil && !pod.IsOld {
			present++
		}
	}
	if !a.Begun && !gang.isOrdered() && present < gang.needs(len(a.Plan)) {
		return nil
	}
	return steps
}

// assign finds a rank for each gated pod: one that has no pod, on a node that takes pods. It also returns the pods for
// which there is none.
func (a *Attempt) assign(gang *Gang, byRank []*Pod, nodes Nodes) (steps []Step, left []*Pod) {
	var gated []*Pod
	for _, pod := range gang.Pods {
		if pod.Gated && !pod.Deleting && !pod.IsOld && !slices.Contains(a.pods, pod.UID) {
			gated = append(gated, pod)
		}
	}
	var free []int
	for rank, pod := range byRank[:a.size()] {
		if pod == nil && nodes.state(a.Plan[rank].Node) == NodeBack {
			free = append(free, rank)
		}
	}
	isElastic := gang.elastic() != nil
	place := func(pod *Pod, at int) {
		steps = append(steps, Step{Kind: PlacePod, Pod: pod, Rank: free[at]})
		free = slices.Delete(free, at, at+1)
	}
	// A pod of an Indexed Job gets the rank of its index, if that fits.
	var others []*Pod
	for _, pod := range gated {
		at := slices.Index(free, pod.Index)
		switch {
		case at >= 0 && a.Plan[pod.Index].GPUs == pod.Work.GPUs:
			place(pod, at)
		case isElastic: // A Job that shrinks loses its highest indexes, so these must be the last ranks.
			left = append(left, pod)
		default:
			others = append(others, pod)
		}
	}
	for _, pod := range others {
		at := slices.IndexFunc(free, func(rank int) bool { return a.Plan[rank].GPUs == pod.Work.GPUs })
		if at >= 0 {
			place(pod, at)
		} else {
			left = append(left, pod)
		}
	}
	return steps, left
}

// noteBegun notes whether the gang has begun: all its pods run, or the first of a gang that makes them one after the
// other. The pods tell that, so another controller finds the same.
func (a *Attempt) noteBegun(gang *Gang, byRank []*Pod) {
	ran := 0
	for rank, pod := range byRank {
		if a.ended[rank] || (pod != nil && pod.Phase == corev1.PodRunning && !pod.IsOld) {
			ran++
		}
	}
	if ran > 0 && (gang.isOrdered() || ran >= gang.needs(len(a.Plan))) {
		a.Begun = true
	}
}

// progress returns the event that the gang waits or runs; nil: that was told.
func (a *Attempt) progress(gang *Gang, byRank []*Pod) *allocator.EngineEvent {
	if a.refused != nil {
		return a.event(allocator.EngineEvent{Kind: "resize_refused", Resize: a.refused.number, Message: a.refused.reason})
	}
	if a.Begun {
		return a.started(gang)
	}
	waitsFor := ""
	for _, pod := range byRank {
		if waitsFor == "" && pod != nil && !pod.Gated && pod.Phase != corev1.PodRunning {
			waitsFor = pod.Unschedulable
		}
	}
	if waitsFor == "" {
		return nil
	}
	return a.event(allocator.EngineEvent{Kind: "pending", Message: waitsFor})
}

// event completes an event, unless the allocator was told the same before.
func (a *Attempt) event(event allocator.EngineEvent) *allocator.EngineEvent {
	event.Queue, event.Job, event.Attempt = a.Key.Queue, a.Key.Job, a.Key.Attempt
	event.Message = shortened(event.Message)
	same := event.Kind == a.told.Kind && event.Message == a.told.Message && event.Resize == a.told.Resize
	if same {
		return nil
	}
	return &event
}

// Told notes that the allocator has an event on record. It returns true if the attempt has ended with that.
func (a *Attempt) Told(event allocator.EngineEvent) bool {
	a.told = event
	switch event.Kind {
	case "started", "resized":
		a.toldDone = event.Resize
	case "resize_refused":
		a.refused = nil
	}
	return isEnd(event.Kind)
}

func isEnd(kind string) bool {
	return !slices.Contains([]string{"pending", "started", "resized", "resize_refused"}, kind)
}

// LastEvent returns the attempt's last event, for a session that begins.
func (a *Attempt) LastEvent(gang *Gang, nodes Nodes) allocator.EngineEvent {
	a.told = allocator.EngineEvent{}
	if decision := Decide(gang, a, nodes); decision.Event != nil {
		return *decision.Event
	}
	event := a.Key.event("pending")
	if a.Begun {
		event.Kind, event.Resize = "started", a.done(gang)
	}
	return event
}

// Restore finds the last attempt of a job of the queue that the gang's Jobs and pods belong to; nil: none.
func Restore(gang *Gang, queue string, of int64) *Attempt {
	var last Key
	var plan []Slot
	var suspension *Suspension
	take := func(key Key, itsPlan []Slot) {
		if key.Queue == queue && key.Job == of && len(itsPlan) > 0 && key.Attempt >= last.Attempt {
			last, plan = key, itsPlan
		}
	}
	for _, pod := range gang.Pods {
		take(pod.Attempt, pod.Plan)
	}
	// Pods keep the plan with which they were placed, and the Job has the last one.
	for _, job := range gang.Jobs {
		take(job.Attempt, job.Plan)
		if job.ByUs != nil && job.ByUs.Key.Queue == queue && job.ByUs.Key.Job == of {
			suspension = job.ByUs
		}
	}
	if last.Attempt == 0 {
		return nil
	}
	attempt := NewAttempt(last, plan)
	attempt.restoreResize(gang)
	if suspension != nil && suspension.Key == last {
		attempt.Undo = &Undo{suspension.Reason, suspension.Message}
	}
	return attempt
}

// RestoreOfOtherQueue finds the attempt of another queue than this in which pods of the gang run; nil: none do.
func RestoreOfOtherQueue(gang *Gang, queue string) *Attempt {
	for _, pod := range gang.Pods {
		if pod.Attempt != (Key{}) && pod.Attempt.Queue != queue && !pod.Gated && !pod.hasEnded() {
			return Restore(gang, pod.Attempt.Queue, pod.Attempt.Job)
		}
	}
	return nil
}

// deleteStrays returns the steps that delete pods of other attempts: their gates are gone, and no attempt wants them.
func deleteStrays(gang *Gang, current Key) []Step {
	var steps []Step
	for _, pod := range gang.Pods {
		isStray := pod.Attempt != (Key{}) && pod.Attempt != current && !pod.Gated
		if isStray && !pod.Deleting && !pod.hasEnded() {
			steps = append(steps, Step{Kind: DeletePod, Pod: pod})
		}
	}
	return steps
}

func shortened(text string) string {
	if len(text) <= messageBytesMax {
		return text
	}
	text = text[:messageBytesMax]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}
