package place

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

const (
	waitS = 20 // for actions, in one request
	// The shortest time between two looks, so that one look takes many changes.
	lookEvery = 20 * time.Millisecond
	// A failed request is repeated after these times: the first, doubled each time, up to the last.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
	// A look that is late by this much may mean that the program was stopped.
	stoppedAfter = time.Second
	// The steps that are carried out at the same time, each for another gang.
	stepsAtOnce = 32
)

// Engine is the allocator's API for agents.
type Engine interface {
	Attach(ctx context.Context, state allocator.EngineState) (string, error)
	Actions(ctx context.Context, session string, after int64, waitS int) ([]allocator.EngineAction, error)
	Report(ctx context.Context, session string, number int64, events []allocator.EngineEvent) error
}

// API is all that an Agent needs of the allocator.
type API interface {
	Engine
	Queue
}

// Options of an Agent.
type Options struct {
	// All replicas have the same name, so that one takes over from another at once.
	Name         string
	GPUResources []string
	// How often the allocator's queue is compared with the gangs.
	Interval time.Duration
	// For people who look at a Job that the allocator does not take. Nil: no events are written.
	Events events.EventRecorder
	// Leader tells who leads, as the API server has it. Nil: this one does.
	Leader func(ctx context.Context) (string, error)
}

// Agent is the allocator's agent for a cluster. Only the leader of several runs.
type Agent struct {
	api      API
	options  Options
	store    *store
	cluster  *cluster
	mirror   *mirror
	log      *slog.Logger
	informer cache.Cache

	attempts map[GangID]*Attempt
	// Attempts that start once the attempt before has ended.
	next    map[GangID]allocator.EngineAction
	byKey   map[Key]GangID
	session string
	number  int64
	nodes   Nodes
	told    map[string]toldNode
	// Events that the next look reports.
	unreported []allocator.EngineEvent
	// This agent's name in the lease, which it had when it started.
	leader string
}

// NewAgent makes an Agent, which has to be started.
func NewAgent(api API, to client.Client, informers cache.Cache, options Options) *Agent {
	from := newStore(options.GPUResources)
	writer := &cluster{client: to}
	log := slog.Default().With("controller", "place")
	mirror := newMirror(api, writer, from, log, time.Now())
	mirror.events = options.Events
	return &Agent{
		api: api, options: options, store: from, cluster: writer, informer: informers, log: log,
		mirror:   mirror,
		attempts: make(map[GangID]*Attempt), next: make(map[GangID]allocator.EngineAction), byKey: make(map[Key]GangID),
	}
}

// NeedLeaderElection makes the manager start only one of several.
func (a *Agent) NeedLeaderElection() bool { return true }

// Places tells whether a job of this name is that of a gang that Larder places.
func (a *Agent) Places(name string) bool { return a.store.hasName(name) }

// errSessionOver says that the agent has to attach again.
var errSessionOver = errors.New("the session is over")

// errNotLeading ends the agent, and with it the program, which then stands by.
var errNotLeading = errors.New("another controller leads: this one was stopped for longer than its lease")

// Start runs until ctx is done. It returns an error if another controller leads.
func (a *Agent) Start(ctx context.Context) error {
	if err := a.store.watch(ctx, a.informer); err != nil {
		return err
	}
	restored := false
	for ctx.Err() == nil {
		if err := a.checkLeads(ctx); err != nil {
			return err
		}
		var ids []GangID
		refresh := func() error {
			var err error
			ids, err = a.mirror.refresh(ctx)
			return err
		}
		if err := retry(ctx, a.log, "list the queue", refresh); err != nil {
			return nil // The context is done.
		}
		if !restored {
			a.restore()
			restored = true
		}
		a.cancelGone(ctx, ids)
		if err := retry(ctx, a.log, "attach to the allocator", func() error { return a.attach(ctx) }); err != nil {
			return nil
		}
		a.runSession(ctx)
	}
	return nil
}

// checkLeads returns an error if another controller has become the leader. One that was stopped learns that late, and
// would act beside the other.
func (a *Agent) checkLeads(ctx context.Context) error {
	if a.options.Leader == nil {
		return nil
	}
	var leader string
	ask := func() error {
		var err error
		leader, err = a.options.Leader(ctx)
		return err
	}
	if err := retry(ctx, a.log, "ask who leads", ask); err != nil {
		return nil // The context is done.
	}
	if a.leader == "" {
		a.leader = leader
	}
	if leader != a.leader {
		return errNotLeading
	}
	return nil
}

// cancelGone cancels the jobs whose gangs are gone. Else the allocator would start them as soon as the agent attaches,
// and stop others for them.
func (a *Agent) cancelGone(ctx context.Context, ids []GangID) {
	var gone []GangID
	for _, id := range ids {
		if !a.store.get(id).isPresent() {
			gone = append(gone, id)
		}
	}
	if err := a.mirror.sync(ctx, gone, a.hasAttempt); err != nil {
		a.log.Warn("cannot cancel the jobs of gangs that are gone", "error", err)
	}
}

func (a *Agent) hasAttempt(id GangID) bool { return a.attempts[id] != nil }

// retry repeats what fails until it succeeds. It returns an error only if ctx is done, or the session is over.
func retry(ctx context.Context, log *slog.Logger, what string, do func() error) error {
	wait := firstRetry
	for {
		err := do()
		if err == nil || errors.Is(err, errSessionOver) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("cannot "+what, "error", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// restore finds the attempts that a former leader has left. Users can write the same annotations: an attempt counts
// only for the job that the allocator's queue has for this very gang. Decide deletes the pods of others. Pods of another
// queue run in an attempt of that queue: the allocator stops it, as it has asked for that.
func (a *Agent) restore() {
	for _, id := range a.store.all() {
		gang := a.store.get(id)
		var attempt *Attempt
		if known, has := a.mirror.known[id]; has && gang.isOf(known) {
			attempt = Restore(gang, known.queue, known.id)
		}
		if attempt == nil {
			attempt = RestoreOfOtherQueue(gang, a.mirror.identity)
		}
		if attempt == nil {
			continue
		}
		if other, taken := a.byKey[attempt.Key]; taken {
			a.log.Warn("two gangs name one attempt", "attempt", attempt.Key.String(), "gang", id.String(),
				"keeps_it", other.String())
			continue
		}
		a.attempts[id] = attempt
		a.byKey[attempt.Key] = id
	}
}

func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

func (a *Agent) attach(ctx context.Context) error {
	a.store.changed() // All gangs are looked at below.
	states, withGPUs := a.nodeStates()
	a.nodes = states
	a.told = make(map[string]toldNode)
	state := allocator.EngineState{
		Agent: a.options.Name, Resizes: true,
		DrainCommand: "kubectl cordon {node}", UndrainCommand: "kubectl uncordon {node}",
		Nodes: []allocator.EngineEvent{}, Attempts: []allocator.EngineEvent{},
	}
	for _, name := range slices.Sorted(maps.Keys(withGPUs)) {
		a.told[name] = toldNode{states.state(name), withGPUs[name]}
		state.Nodes = append(state.Nodes, nodeEvent(name, a.told[name]))
	}
	var ids []GangID
	for id, attempt := range a.attempts {
		event := attempt.LastEvent(a.store.get(id), states)
		event.AtUnixS = now()
		state.Attempts = append(state.Attempts, event)
		ids = append(ids, id)
	}
	session, err := a.api.Attach(ctx, state)
	if err != nil {
		a.dropRefused(ids, err)
		return err
	}
	a.session, a.number, a.unreported = session, 0, nil
	clear(a.next)
	for i, event := range state.Attempts {
		a.noteTold(ids[i], event)
	}
	a.store.again(a.store.all()...)
	a.log.Info("attached to the allocator", "session", session, "nodes", len(state.Nodes), "attempts", len(state.Attempts))
	return nil
}

// refusedAttempt finds the attempt that a refusal names, by its place in the request.
var refusedAttempt = regexp.MustCompile(`^attempts\[(\d+)\]`)

// dropRefused forgets the attempt that the allocator does not take: the same request would be refused for ever, and no
// gang would be placed. The allocator then starts the attempt's job anew.
func (a *Agent) dropRefused(ids []GangID, err error) {
	var status *wire.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusBadRequest {
		return
	}
	found := refusedAttempt.FindStringSubmatch(status.Message)
	if found == nil {
		return
	}
	at, err := strconv.Atoi(found[1])
	if err != nil || at >= len(ids) {
		return
	}
	attempt := a.attempts[ids[at]]
	a.log.Error("the allocator refuses an attempt, which is dropped", "gang", ids[at].String(),
		"attempt", attempt.Key.String(), "reason", status.Message)
	delete(a.byKey, attempt.Key)
	delete(a.attempts, ids[at])
}

// toldNode is what the allocator was told of a node.
type toldNode struct {
	state NodeState
	gpus  NodeGPUs
}

// nodeEvent tells the state of a node and its GPUs. An allocator whose nodes are configured ignores the GPUs.
func nodeEvent(name string, node toldNode) allocator.EngineEvent {
	event := allocator.EngineEvent{
		Kind: string(node.state), Node: name, GPUs: &node.gpus.Count, GPUType: node.gpus.Type, AtUnixS: now(),
	}
	if node.gpus.Zone != "" {
		event.Labels = map[string]string{"zone": node.gpus.Zone}
	}
	switch node.state {
	case NodeDrained:
		event.Message = "it is cordoned"
	case NodeLost:
		event.Message = "it is not ready"
	case NodeBack:
	}
	return event
}

// noteTold notes that an event is on record.
func (a *Agent) noteTold(id GangID, event allocator.EngineEvent) {
	attempt := a.attempts[id]
	if attempt == nil {
		return
	}
	if !attempt.Told(event) {
		if event.Kind == "resize_refused" {
			a.store.again(id)
		}
		return
	}
	delete(a.attempts, id)
	delete(a.byKey, attempt.Key)
	if event.Kind == "ended" && !event.WasStopping {
		a.mirror.ended(id)
	}
	if next, waits := a.next[id]; waits {
		delete(a.next, id)
		a.unreported = append(a.unreported, a.begin(id, next)...)
	}
	a.store.again(id)
}

// runSession goes on until the session is over.
func (a *Agent) runSession(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	actions := make(chan []allocator.EngineAction)
	over := make(chan struct{})
	var polling sync.WaitGroup
	polling.Go(func() {
		defer close(over)
		a.poll(ctx, a.session, actions)
	})
	defer polling.Wait()
	defer end()
	ticker := time.NewTicker(a.options.Interval)
	defer ticker.Stop()
	again := time.NewTimer(firstRetry)
	defer again.Stop()
	var later []GangID // that failed
	wait := firstRetry
	looked := time.Now()
	for {
		var orphans []allocator.EngineEvent
		var all []GangID
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case taken := <-actions:
			orphans = a.take(taken)
		case <-ticker.C:
			ids, err := a.mirror.refresh(ctx)
			if err != nil {
				a.log.Warn("cannot compare the gangs with the queue", "error", err)
			}
			all = append(ids, a.store.all()...)
		case <-a.store.wake:
		case <-again.C:
			all, later = later, nil
		}
		// After a stop, what this agent knows may be old, and another one may act.
		if time.Since(looked) > a.options.Interval+stoppedAfter && a.checkLeads(ctx) != nil {
			return
		}
		failed, err := a.look(ctx, all, orphans)
		if err != nil {
			return
		}
		looked = time.Now()
		switch {
		case len(failed) > 0:
			later = append(later, failed...)
			again.Reset(wait)
			wait = min(2*wait, lastRetry)
		case len(later) == 0:
			wait = firstRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// poll takes actions until the session is over.
func (a *Agent) poll(ctx context.Context, session string, actions chan<- []allocator.EngineAction) {
	after := int64(0)
	for {
		var taken []allocator.EngineAction
		err := retry(ctx, a.log, "ask for actions", func() error {
			var err error
			taken, err = a.api.Actions(ctx, session, after, waitS)
			return overIfRefused(err)
		})
		if err != nil {
			return
		}
		if len(taken) == 0 {
			continue
		}
		after = taken[len(taken)-1].Number
		select {
		case actions <- taken:
		case <-ctx.Done():
			return
		}
	}
}

// overIfRefused tells refusals that end the session from failures that pass.
func overIfRefused(err error) error {
	if wire.IsStatus(err, http.StatusConflict) || wire.IsStatus(err, http.StatusBadRequest) {
		return fmt.Errorf("%w: %w", errSessionOver, err)
	}
	return err
}

// event returns an event of the attempt.
func (k Key) event(kind string) allocator.EngineEvent {
	return allocator.EngineEvent{Kind: kind, Queue: k.Queue, Job: k.Job, Attempt: k.Attempt}
}

func (k Key) rejection(why string) allocator.EngineEvent {
	event := k.event("rejected")
	event.Message = shortened(why)
	return event
}

func keyOf(action allocator.EngineAction) Key { return Key{action.Job, action.Attempt, action.Queue} }

// take notes what the allocator wants. It returns the events of attempts that are not here.
func (a *Agent) take(actions []allocator.EngineAction) []allocator.EngineEvent {
	var events []allocator.EngineEvent
	for _, action := range actions {
		key := keyOf(action)
		if action.Do == "start" {
			events = append(events, a.takeStart(key, action)...)
			continue
		}
		id, known := a.byKey[key]
		if !known {
			for waiting, next := range a.next {
				if keyOf(next) == key {
					delete(a.next, waiting)
				}
			}
			if action.Do == "resize" {
				continue
			}
			code := int64(0)
			ended := key.event("ended")
			ended.ExitCode, ended.WasStopping = &code, true
			events = append(events, ended)
			continue
		}
		if action.Do == "resize" {
			a.takeResize(id, action)
			continue
		}
		if attempt := a.attempts[id]; attempt.Undo == nil || attempt.Undo.Reason != Stopped {
			attempt.Undo = &Undo{Stopped, "Larder has stopped it"}
		}
		a.store.again(id)
	}
	return events
}

func (a *Agent) takeStart(key Key, action allocator.EngineAction) []allocator.EngineEvent {
	if _, known := a.byKey[key]; known {
		return nil
	}
	id, ours := gangOf(action.Parameters)
	if !ours {
		rejected := key.rejection("it is no gang of Kubernetes: submit it there")
		rejected.ForGood = true
		return []allocator.EngineEvent{rejected}
	}
	// Anybody who may submit jobs can name a gang of others.
	if known, has := a.mirror.known[id]; !has || known.id != key.Job {
		return []allocator.EngineEvent{key.rejection("gang " + id.String() + " is not known, or has another job")}
	}
	if before := a.attempts[id]; before != nil {
		if before.Undo == nil {
			before.Undo = &Undo{Stopped, "Larder has started another attempt"}
		}
		a.next[id] = action
		a.store.again(id)
		return nil
	}
	return a.begin(id, action)
}

// takeResize notes that an attempt is to have other pods. An action may come twice.
func (a *Agent) takeResize(id GangID, action allocator.EngineAction) {
	attempt := a.attempts[id]
	if attempt.Undo != nil || action.Resize <= attempt.resize.Wanted {
		return
	}
	gang := a.store.get(id)
	plan, err := gang.planFor(action.Tasks)
	if err != nil {
		attempt.refused = &refusedResize{action.Resize, err.Error()}
	} else {
		attempt.takeResize(action.Resize, plan, gang)
	}
	a.store.again(id)
}

// begin makes an attempt of an action.
func (a *Agent) begin(id GangID, action allocator.EngineAction) []allocator.EngineEvent {
	key := keyOf(action)
	plan, err := a.store.get(id).planFor(action.Tasks)
	if err != nil {
		return []allocator.EngineEvent{key.rejection(shortened(err.Error()))}
	}
	a.attempts[id] = NewAttempt(key, plan)
	a.byKey[key] = id
	a.store.again(id)
	return nil
}

// work is a gang that a look has decided on.
type work struct {
	id       GangID
	attempt  *Attempt
	decision Decision
	err      error
	failed   StepKind // which has led to err
}

// look decides on all gangs that have changed, carries that out, and reports it. It returns the gangs to look at again
// soon. The error is that the session, or the time, is over.
func (a *Agent) look(ctx context.Context, more []GangID, events []allocator.EngineEvent) ([]GangID, error) {
	events = append(a.unreported, events...)
	a.unreported = nil
	ids, renewed := a.store.changed()
	if renewed {
		events = append(events, a.renewNodes()...)
		for id := range a.attempts {
			more = append(more, id)
		}
	}
	ids = unique(append(ids, more...))
	var failed []GangID
	if err := a.mirror.sync(ctx, ids, a.hasAttempt); err != nil {
		a.log.Warn("cannot make the queue as the gangs are", "error", err)
		failed = append(failed, ids...)
	}
	var works []*work
	for _, id := range ids {
		attempt := a.attempts[id]
		decision := Decide(a.store.get(id), attempt, a.nodes)
		if len(decision.Steps) > 0 || decision.Event != nil {
			works = append(works, &work{id: id, attempt: attempt, decision: decision})
		}
	}
	a.carryOut(ctx, works)
	var told []*work
	for _, one := range works {
		if one.err != nil {
			a.log.Warn("cannot carry out a decision", "gang", one.id.String(), "error", one.err)
			failed = append(failed, one.id)
			if one.failed == ScaleJob && (apierrors.IsInvalid(one.err) || apierrors.IsForbidden(one.err)) {
				one.attempt.refuseScale(one.err.Error())
			}
		}
		if one.decision.Event != nil {
			one.decision.Event.AtUnixS = now()
			events = append(events, *one.decision.Event)
			told = append(told, one)
		}
	}
	if len(events) == 0 {
		return failed, nil
	}
	err := retry(ctx, a.log, "report events", func() error {
		return overIfRefused(a.api.Report(ctx, a.session, a.number+1, events))
	})
	if err != nil {
		return nil, err
	}
	a.number++
	for _, one := range told {
		if a.attempts[one.id] == one.attempt {
			a.noteTold(one.id, *one.decision.Event)
		}
	}
	return failed, nil
}

// carryOut carries out the steps of several gangs at the same time, and those of one gang in their order.
func (a *Agent) carryOut(ctx context.Context, works []*work) {
	var group sync.WaitGroup
	slots := make(chan struct{}, stepsAtOnce)
	for _, one := range works {
		if len(one.decision.Steps) == 0 {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			for _, step := range one.decision.Steps {
				if one.err = a.cluster.carryOut(ctx, step, one.attempt); one.err != nil {
					one.failed = step.Kind
					return
				}
				if step.Kind == PlacePod {
					one.attempt.Placed(step)
				}
			}
		})
	}
	group.Wait()
}

// nodeStates returns the states of all nodes, and the GPUs of those that have or had some: a node that is there may run
// pods, also if it names no GPUs any more.
func (a *Agent) nodeStates() (Nodes, map[string]NodeGPUs) {
	states, withGPUs := a.store.nodeStates()
	for name, before := range a.told {
		_, isThere := states[name]
		if _, has := withGPUs[name]; isThere && !has {
			withGPUs[name] = NodeGPUs{Type: before.gpus.Type, Zone: before.gpus.Zone}
		}
	}
	return states, withGPUs
}

// renewNodes takes the states of nodes, and returns the events of those that have changed.
func (a *Agent) renewNodes() []allocator.EngineEvent {
	states, withGPUs := a.nodeStates()
	a.nodes = states
	var events []allocator.EngineEvent
	for _, name := range slices.Sorted(maps.Keys(withGPUs)) {
		now := toldNode{states.state(name), withGPUs[name]}
		if before, known := a.told[name]; !known || before != now {
			events = append(events, nodeEvent(name, now))
		}
		a.told[name] = now
	}
	for name := range a.told {
		if _, has := withGPUs[name]; !has {
			events = append(events, allocator.EngineEvent{
				Kind: "node_removed", Node: name, Message: "it was deleted", AtUnixS: now(),
			})
			delete(a.told, name)
		}
	}
	return events
}

func unique(ids []GangID) []GangID {
	seen := make(map[GangID]struct{}, len(ids))
	kept := ids[:0]
	for _, id := range ids {
		if _, is := seen[id]; !is {
			seen[id] = struct{}{}
			kept = append(kept, id)
		}
	}
	return kept
}
