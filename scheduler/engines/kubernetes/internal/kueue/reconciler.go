// Package kueue keeps Workloads of Kueue waiting until the allocator has reserved their cache and remote bandwidth, and
// the cache is filled. It is the controller of AdmissionChecks with the controller name larder.io/storage.
package kueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	runnable "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// ControllerName is the controller name of the AdmissionChecks that this package answers.
const ControllerName = "larder.io/storage"

const (
	fieldOwner      = client.FieldOwner("larder-storage")
	messageBytesMax = 4096
	noteBytesMax    = 1024 // of an event
	// The cache of a Workload that waits must grow within so many times its patience.
	fillPatience = 5

	nothingReserved = "There is nothing to reserve."
)

// Reconciler compares the Workloads with what the allocator has reserved.
type Reconciler struct {
	Client    client.Client
	Allocator Allocator
	// NodeSelector selects the nodes on which larderd runs: each of them has all Datasets.
	NodeSelector map[string]string
	// Patience is how long a Workload keeps its quota of Kueue while it cannot have what it asks for. Then the Workload
	// gives its quota to others, and queues again.
	Patience time.Duration
	// Events tells users why a Workload is refused: Kueue clears the answer soon after. Nil: nobody is told.
	Events events.EventRecorder
	// IsPlaced tells whether the allocator itself starts and ends a job of this name. Nil: it does so for none.
	IsPlaced func(name string) bool

	mutex sync.Mutex
	// Jobs that must stay registered before their pods are there. Nil: not known yet.
	held map[string]struct{}
	// Only Compare uses it.
	fills fills
}

// claim is what the Workloads of one job ask for.
type claim struct {
	job     string
	dataset string
	user    *int64
	since   metav1.Time           // when the first Workload got its quota
	started allocator.Reservation // of all Workloads that have started
	waiting []waitingPart         // in the order in which they got their quota
}

// waitingPart is a Workload that waits, and its answer.
type waitingPart struct {
	workload *workload
	asked    *request
	state    *checkState
}

// reserved is what the allocator keeps for a claim during a comparison.
type reserved struct {
	claim *claim
	row   *allocator.Job         // nil: not registered
	now   *allocator.Reservation // nil: none
	grown bool                   // so the row does not know whether the cache is filled
}

// SetUp registers the comparison with a manager. Caches fill without an event in Kubernetes, so it runs every interval.
// The rest of the manager goes on without Kueue: the comparison begins when Kueue's kinds can be read.
func (r *Reconciler) SetUp(manager ctrl.Manager, interval time.Duration) error {
	return manager.Add(runnable.RunnableFunc(func(ctx context.Context) error {
		for told := ""; ; {
			err := r.findKueue(ctx, manager.GetRESTMapper(), manager.GetAPIReader())
			if err == nil {
				break
			}
			if told != err.Error() {
				told = err.Error()
				ctrl.Log.Error(err, "AdmissionChecks are not answered yet")
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(interval):
			}
		}
		return loop.SetUp(manager, "kueue", interval, r.Compare, loop.Watched{Object: empty(checkKind)},
			loop.Watched{Object: empty(workloadKind), Which: predicate.Funcs{UpdateFunc: isChange}})
	}))
}

// findKueue tells whether Kueue's kinds are there and readable. The manager would end if it could not read them.
func (r *Reconciler) findKueue(ctx context.Context, mapper meta.RESTMapper, reader client.Reader) error {
	for _, kind := range []schema.GroupVersionKind{checkKind, workloadKind} {
		if _, err := mapper.RESTMapping(kind.GroupKind(), kind.Version); err != nil {
			if meta.IsNoMatchError(err) {
				r.hold(nil) // Without Kueue there are no Workloads.
			}
			return fmt.Errorf("find %s of Kueue: install Kueue 0.15 or later: %w", kind.Kind, err)
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := reader.List(ctx, list, client.Limit(1)); err != nil {
			return fmt.Errorf("list the first %s of Kueue: %w", kind.Kind, err)
		}
	}
	return nil
}

// isChange tells whether a Workload has changed in what this package reads, apart from messages.
func isChange(change event.UpdateEvent) bool {
	before, isBefore := change.ObjectOld.(*unstructured.Unstructured)
	after, isAfter := change.ObjectNew.(*unstructured.Unstructured)
	if !isBefore || !isAfter {
		return true
	}
	first, err := workloadOf(before)
	second, errAfter := workloadOf(after)
	if err != nil || errAfter != nil {
		return true
	}
	states := func(w *workload) map[string]string {
		made := make(map[string]string)
		for _, one := range w.Status.AdmissionChecks {
			made[one.Name] = one.State
		}
		return made
	}
	return first.Metadata.Generation != second.Metadata.Generation || first.holdsQuota() != second.holdsQuota() ||
		first.quotaSince() != second.quotaSince() || !maps.Equal(states(first), states(second))
}

// StripWorkload drops what this package does not read from a Workload before the cache keeps it.
func StripWorkload(object any) (any, error) {
	one, is := object.(*unstructured.Unstructured)
	if !is || one.GroupVersionKind() != workloadKind {
		return object, nil
	}
	read, err := workloadOf(one)
	if err != nil {
		return object, nil // A comparison will report it.
	}
	read.Metadata.Annotations = nil
	for i := range read.Spec.PodSets {
		spec := &read.Spec.PodSets[i].Template.Spec
		spec.Volumes, spec.Affinity, spec.Tolerations = nil, nil, nil
		for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
			for j := range containers {
				one := &containers[j]
				*one = corev1.Container{Name: one.Name, Resources: one.Resources, RestartPolicy: one.RestartPolicy,
					SecurityContext: one.SecurityContext}
			}
		}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(read)
	if err != nil {
		return nil, fmt.Errorf("shorten Workload %s: %w", read, err)
	}
	stripped := &unstructured.Unstructured{Object: content}
	stripped.SetGroupVersionKind(workloadKind)
	return stripped, nil
}

func empty(kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

// Keeps tells whether a job of this name must stay registered though none of its pods runs.
func (r *Reconciler) Keeps(name string) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	_, held := r.held[name]
	return held || r.held == nil
}

func (r *Reconciler) hold(claims map[string]*claim) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.held = make(map[string]struct{}, len(claims))
	for name := range claims {
		r.held[name] = struct{}{}
	}
}

// Compare reserves for the Workloads that have their quota, answers their checks, and releases what no Workload needs.
// A Workload that fails does not stop the others; all errors are returned together.
func (r *Reconciler) Compare(ctx context.Context) error {
	checks, err := r.ownChecks(ctx)
	if err != nil {
		return err
	}
	waiting, claims, err := r.claims(ctx, checks)
	if err != nil {
		return err
	}
	r.hold(claims) // Before they are registered: others remove jobs without pods.
	failed := []error{r.serveAll(ctx, claims, len(waiting) > 0)}
	for w, state := range waiting {
		failed = append(failed, r.write(ctx, w, w.statesOf(checks), state))
	}
	return errors.Join(failed...)
}

// serveAll compares all claims with what the allocator has.
func (r *Reconciler) serveAll(ctx context.Context, claims map[string]*claim, anyWaits bool) error {
	r.fills.keep(claims)
	jobs, err := r.Allocator.Jobs(ctx)
	var now *cluster
	if err != nil {
		err = fmt.Errorf("list the allocator's jobs: %w", err)
	} else if anyWaits {
		now, err = readCluster(ctx, r.Allocator)
	}
	if err != nil {
		for _, one := range claims {
			for _, part := range one.waiting {
				r.wait(part, "The allocator does not answer: "+err.Error())
			}
		}
		return err
	}
	known := make(map[string]*allocator.Job, len(jobs))
	for i := range jobs {
		if jobs[i].Registered {
			known[jobs[i].Name] = &jobs[i]
		}
	}
	failed := []error{r.release(ctx, known, claims)}
	for _, one := range slices.SortedFunc(maps.Values(claims), byQuota) {
		if err := r.serve(ctx, one, known[one.job], now); err != nil {
			failed = append(failed, fmt.Errorf("job %s: %w", one.job, err))
		}
	}
	return errors.Join(failed...)
}

// byQuota sorts what has waited longest first.
func byQuota(a, b *claim) int {
	return cmp.Or(a.since.Compare(b.since.Time), cmp.Compare(a.job, b.job))
}

// ownChecks returns the names of the AdmissionChecks of this controller, and tells Kueue that they are served.
func (r *Reconciler) ownChecks(ctx context.Context) (map[string]struct{}, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(checkKind)
	if err := r.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list the AdmissionChecks: %w", err)
	}
	names := make(map[string]struct{})
	for i := range list.Items {
		var read struct {
			Spec struct {
				ControllerName string `json:"controllerName"`
			} `json:"spec"`
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		check := &list.Items[i]
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(check.Object, &read); err != nil {
			return nil, fmt.Errorf("read AdmissionCheck %s: %w", check.GetName(), err)
		}
		if read.Spec.ControllerName != ControllerName {
			continue
		}
		names[check.GetName()] = struct{}{}
		condition := metav1.Condition{
			Type: "Active", Status: metav1.ConditionTrue, Reason: "Served", Message: "Larder answers this check.",
			ObservedGeneration: check.GetGeneration(),
		}
		if !meta.SetStatusCondition(&read.Status.Conditions, condition) {
			continue
		}
		condition = *meta.FindStatusCondition(read.Status.Conditions, condition.Type)
		status := map[string]any{"conditions": []metav1.Condition{condition}}
		if _, err := r.apply(ctx, checkKind, check, status); err != nil {
			return nil, fmt.Errorf("write the status of AdmissionCheck %s: %w", check.GetName(), err)
		}
	}
	return names, nil
}

// claims returns what the Workloads with quota ask for, by job, and the answers to the Workloads that wait for one of
// these checks.
func (r *Reconciler) claims(ctx context.Context, checks map[string]struct{}) (map[*workload]*checkState,
	map[string]*claim, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(workloadKind)
	if err := r.Client.List(ctx, list); err != nil {
		return nil, nil, fmt.Errorf("list the Workloads: %w", err)
	}
	waiting, claims := make(map[*workload]*checkState), make(map[string]*claim)
	read := make([]*workload, 0, len(list.Items))
	for i := range list.Items {
		one, err := workloadOf(&list.Items[i])
		if err != nil {
			return nil, nil, err
		}
		read = append(read, one)
	}
	slices.SortFunc(read, func(a, b *workload) int {
		first, second := a.quotaSince(), b.quotaSince()
		return cmp.Or(first.Compare(second.Time), cmp.Compare(a.String(), b.String()))
	})
	for _, one := range read {
		states := one.statesOf(checks)
		isRefused := func(state checkState) bool { return state.State == stateRetry || state.State == stateRejected }
		if len(states) == 0 || !one.holdsQuota() || slices.ContainsFunc(states, isRefused) {
			continue
		}
		var state *checkState
		at := slices.IndexFunc(states, func(state checkState) bool { return state.State == statePending })
		if at >= 0 {
			state = &checkState{State: statePending, Message: states[at].Message}
			waiting[one] = state
		}
		asked, err := requestOf(one)
		switch {
		case err != nil && state != nil:
			state.State, state.Message = stateRejected, err.Error()
		case err != nil:
		case asked.job != "":
			r.join(claims, one, &asked, state)
		case state != nil:
			r.admit(one, state, nothingReserved, "")
		}
	}
	return waiting, claims, nil
}

// join adds a Workload to the claim of its job. The oldest Workload of a job chooses the dataset.
func (r *Reconciler) join(claims map[string]*claim, w *workload, asked *request, state *checkState) {
	one := claims[asked.job]
	if one == nil {
		one = &claim{job: asked.job, dataset: asked.dataset, user: asked.user, since: w.quotaSince()}
		claims[asked.job] = one
	}
	switch {
	case one.dataset != asked.dataset && state != nil:
		state.Message = fmt.Sprintf("Waits until other pods of job %s end, which read dataset %q.", one.job, one.dataset)
		r.loseQuota(w, state)
	case one.dataset != asked.dataset:
	case state != nil:
		one.waiting = append(one.waiting, waitingPart{w, asked, state})
	default:
		one.started = joined(one.started, asked.Reservation)
	}
}

// serve reserves for one job, and answers its Workloads that wait. Workloads that have started keep what they have, and
// those that wait get theirs one after the other.
func (r *Reconciler) serve(ctx context.Context, one *claim, row *allocator.Job, now *cluster) error {
	if row != nil && row.Running && row.Dataset != one.dataset {
		// The follower keeps the row as long as these pods run.
		for _, part := range one.waiting {
			r.wait(part, fmt.Sprintf("Waits until the pods of job %s end, which read dataset %q.", one.job, row.Dataset))
		}
		return nil
	}
	has := &reserved{claim: one, row: row}
	if row != nil && row.Dataset == one.dataset {
		has.now = &allocator.Reservation{
			CacheBytes: row.CacheBytes, BandwidthBytesPerSecond: row.BandwidthBytesPerSecond,
		}
	}
	total := one.started
	var failed []error
	if len(one.waiting) == 0 || total != (allocator.Reservation{}) {
		failed = append(failed, unlessRefused(r.ensure(ctx, has, total)))
	}
	var granted []waitingPart
	for _, part := range one.waiting {
		if isRefused, err := r.refuse(ctx, part, now); err != nil || isRefused {
			failed = append(failed, err)
			continue
		}
		wanted := joined(total, part.asked.Reservation)
		if err := r.ensure(ctx, has, wanted); err != nil {
			failed = append(failed, r.explain(part, err))
			continue
		}
		total = wanted
		granted = append(granted, part)
	}
	if has.now != nil && *has.now != total {
		failed = append(failed, unlessRefused(r.reserve(ctx, has, total))) // Others get what is left over.
	}
	for _, part := range granted {
		failed = append(failed, r.start(ctx, part, total, has, now))
	}
	return errors.Join(failed...)
}

// start lets a Workload start whose part is reserved, once the cache of its job is filled.
func (r *Reconciler) start(ctx context.Context, part waitingPart, total allocator.Reservation, has *reserved,
	now *cluster) error {
	if total.CacheBytes > 0 && (has.grown || !has.row.Staged) {
		r.fill(part, total.CacheBytes, now)
		return nil
	}
	r.fills.forget(part.asked.job)
	isDeclared, err := r.hasDataset(ctx, part.asked.dataset)
	if err != nil {
		return err
	}
	onlyNode := ""
	if !isDeclared { // Datasets come to all nodes.
		onlyNode = now.onlyNode(part.asked.dataset)
	}
	message := "Cache and bandwidth are reserved."
	if part.asked.Reservation == (allocator.Reservation{}) {
		message = nothingReserved
	}
	r.admit(part.workload, part.state, message, onlyNode)
	return nil
}

// fill tells how far the cache is filled. A Workload whose cache does not grow for long gives its quota to others.
func (r *Reconciler) fill(part waitingPart, wantedBytes int64, now *cluster) {
	var cachedBytes int64
	if dataset := now.datasets[part.asked.dataset]; dataset != nil {
		cachedBytes, wantedBytes = dataset.CachedBytes, min(wantedBytes, dataset.SizeBytes)
	}
	part.state.Message = fmt.Sprintf("Cache and bandwidth are reserved. The cache fills: %d GiB of %d GiB.",
		cachedBytes>>30, (wantedBytes+1<<30-1)>>30)
	since := r.fills.since(part.asked.job, cachedBytes)
	if patience := fillPatience * r.Patience; time.Since(since) > patience {
		part.state.State = stateRetry
		part.state.Message += fmt.Sprintf(" It has not grown for %s: `larder nodes` and `larder dataset ls` show why.",
			patience)
		r.fills.forget(part.asked.job)
	}
}

// refuse answers a Workload that cannot have what it asks for, now or ever. Only what has not changed for long is
// final: nodes may still report.
func (r *Reconciler) refuse(ctx context.Context, part waitingPart, now *cluster) (bool, error) {
	dataset := part.asked.dataset
	isDeclared, err := r.hasDataset(ctx, dataset)
	if err != nil {
		return false, err
	}
	isFinal := len(now.silent) == 0
	switch tooMuch := now.tooMuch(part.asked); {
	case now.datasets[dataset] == nil && isDeclared:
		r.wait(part, fmt.Sprintf("no node has dataset %q yet: `kubectl events --for dataset/%s` says why", dataset,
			dataset))
		return true, nil
	case now.datasets[dataset] == nil:
		err = fmt.Errorf("no node has a dataset %q, and there is no such Dataset", dataset)
	case tooMuch == nil:
		return false, nil
	case part.asked.CacheBytes > now.capacityBytes:
		err, isFinal = tooMuch, true
	default:
		var budgets v1alpha1.RemoteBudgetList
		if err := r.Client.List(ctx, &budgets); err != nil {
			return false, fmt.Errorf("list the RemoteBudgets: %w", err)
		}
		err, isFinal = tooMuch, len(budgets.Items) == 0
	}
	r.wait(part, err.Error())
	if isFinal && part.state.State == stateRetry && time.Since(now.started) > r.Patience {
		part.state.State = stateRejected
	}
	return true, nil
}

func (r *Reconciler) hasDataset(ctx context.Context, name string) (bool, error) {
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.Dataset{})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read Dataset %s: %w", name, err)
	}
	return err == nil, nil
}

// wait answers a Workload that cannot have what it asks for now.
func (r *Reconciler) wait(part waitingPart, message string) {
	part.state.Message = message
	r.loseQuota(part.workload, part.state)
}

// explain answers a Workload whose reservation failed, and returns errors that are no answer of the allocator to it.
func (r *Reconciler) explain(part waitingPart, err error) error {
	switch {
	case wire.IsStatus(err, http.StatusBadRequest), wire.IsStatus(err, http.StatusRequestEntityTooLarge):
		part.state.State, part.state.Message = stateRejected, "The allocator refuses the job: "+err.Error()
		return nil
	case unlessRefused(err) == nil:
		r.wait(part, "Waits for cache and bandwidth: "+err.Error())
		return nil
	}
	r.wait(part, "The allocator does not answer: "+err.Error())
	return err
}

// unlessRefused returns an error, unless the allocator says with it that a job cannot have what it asks for now.
func unlessRefused(err error) error {
	for _, status := range []int{http.StatusNotFound, http.StatusServiceUnavailable, http.StatusInsufficientStorage} {
		if wire.IsStatus(err, status) {
			return nil
		}
	}
	return err
}

// loseQuota makes a Workload queue again that has waited too long. Kueue could delay that, but it would keep the quota
// meanwhile.
func (r *Reconciler) loseQuota(w *workload, state *checkState) {
	since := w.quotaSince()
	if state.State == statePending && time.Since(since.Time) > r.Patience {
		state.State = stateRetry
	}
}

// ensure reserves for a job, unless the job has as much.
func (r *Reconciler) ensure(ctx context.Context, has *reserved, wanted allocator.Reservation) error {
	if has.now != nil && covers(*has.now, wanted) {
		return nil
	}
	return r.reserve(ctx, has, wanted)
}

func (r *Reconciler) reserve(ctx context.Context, has *reserved, wanted allocator.Reservation) error {
	one := has.claim
	if has.row != nil && has.row.Dataset != one.dataset {
		if err := r.Allocator.Remove(ctx, one.job); err != nil {
			return fmt.Errorf("remove what was registered for dataset %s: %w", has.row.Dataset, err)
		}
		has.row = nil
	}
	if has.row == nil {
		registration := allocator.Registration{Name: one.job, Dataset: one.dataset, User: one.user}
		if err := r.Allocator.Register(ctx, registration); err != nil && !wire.IsStatus(err, http.StatusConflict) {
			return fmt.Errorf("register: %w", err)
		}
		has.row = &allocator.Job{Name: one.job, Dataset: one.dataset}
	}
	if err := r.Allocator.Reserve(ctx, one.job, wanted); err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
	has.grown = has.grown || has.now == nil || has.now.CacheBytes < wanted.CacheBytes
	has.now = &wanted
	return nil
}

// release gives back what no Workload with quota needs. The jobs themselves are removed with their last pods.
func (r *Reconciler) release(ctx context.Context, known map[string]*allocator.Job, claims map[string]*claim) error {
	var failed []error
	for name, row := range known {
		isReserved := row.CacheBytes > 0 || row.BandwidthBytesPerSecond > 0
		isPlaced := r.IsPlaced != nil && r.IsPlaced(name)
		if claims[name] != nil || !isReserved || isPlaced || !strings.HasPrefix(name, follow.NamePrefix) {
			continue
		}
		var err error
		if row.Running {
			err = r.Allocator.Reserve(ctx, name, allocator.Reservation{})
		} else {
			err = r.Allocator.Remove(ctx, name)
		}
		if err != nil && !wire.IsStatus(err, http.StatusNotFound) {
			failed = append(failed, fmt.Errorf("release job %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

// admit lets a Workload start on the nodes that have its dataset. Kueue refuses to change what a template selects.
func (r *Reconciler) admit(w *workload, state *checkState, message, onlyNode string) {
	state.State, state.Message = stateReady, message
	for i := range w.Spec.PodSets {
		set := &w.Spec.PodSets[i]
		update := podSetUpdate{Name: set.Name}
		if set.Template.Labels[follow.DatasetLabel] != "" {
			update.NodeSelector = maps.Clone(r.NodeSelector)
			if onlyNode != "" && !w.hasTopology(set) {
				if update.NodeSelector == nil {
					update.NodeSelector = make(map[string]string)
				}
				update.NodeSelector[corev1.LabelHostname] = onlyNode
			}
			maps.DeleteFunc(update.NodeSelector, func(label, _ string) bool {
				_, has := set.Template.Spec.NodeSelector[label]
				return has
			})
		}
		state.PodSetUpdates = append(state.PodSetUpdates, update)
	}
}

// write answers all own checks of a Workload, if the answer is new. One request must have all of them: Kubernetes drops
// those that a later request of the same field owner leaves out.
func (r *Reconciler) write(ctx context.Context, w *workload, before []checkState, state *checkState) error {
	state.Message = shortened(state.Message, messageBytesMax)
	isNew := func(one checkState) bool { return one.State != state.State || one.Message != state.Message }
	if !slices.ContainsFunc(before, isNew) {
		return nil
	}
	after := make([]checkState, 0, len(before))
	for _, one := range before {
		next := *state
		next.Name, next.LastTransitionTime = one.Name, one.LastTransitionTime
		if one.State != state.State {
			next.LastTransitionTime = metav1.Now()
		}
		after = append(after, next)
	}
	object := empty(workloadKind)
	object.SetName(w.Metadata.Name)
	object.SetNamespace(w.Metadata.Namespace)
	object.SetUID(w.Metadata.UID)
	object.SetResourceVersion(w.Metadata.ResourceVersion)
	written, err := r.apply(ctx, workloadKind, object, map[string]any{"admissionChecks": after})
	if err != nil {
		return fmt.Errorf("answer Workload %s: %w", w, err)
	}
	if written && r.Events != nil && state.State != stateReady && state.State != statePending {
		r.Events.Eventf(shownTo(w), object, corev1.EventTypeWarning, "Storage"+state.State, "AdmissionCheck", "%s",
			shortened(state.Message, noteBytesMax))
	}
	return nil
}

func shortened(text string, bytesMax int) string {
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax], "")
}

// shownTo returns the object at which a user looks: the Job, which Kueue makes the owner of its Workload.
func shownTo(w *workload) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetNamespace(w.Metadata.Namespace)
	if owner := metav1.GetControllerOf(&w.Metadata); owner != nil {
		object.SetAPIVersion(owner.APIVersion)
		object.SetKind(owner.Kind)
		object.SetName(owner.Name)
		object.SetUID(owner.UID)
		return object
	}
	object.SetGroupVersionKind(workloadKind)
	object.SetName(w.Metadata.Name)
	object.SetUID(w.Metadata.UID)
	return object
}

// apply writes a part of the status of an object, if the object has not changed since it was read. It tells
// whether it has written.
func (r *Reconciler) apply(ctx context.Context, kind schema.GroupVersionKind, object *unstructured.Unstructured,
	status map[string]any) (bool, error) {
	text, err := json.Marshal(map[string]any{
		"apiVersion": kind.GroupVersion().String(),
		"kind":       kind.Kind,
		"metadata": map[string]any{
			"name": object.GetName(), "namespace": object.GetNamespace(), "uid": object.GetUID(),
			"resourceVersion": object.GetResourceVersion(),
		},
		"status": status,
	})
	if err != nil {
		return false, fmt.Errorf("encode the status: %w", err)
	}
	patch := client.RawPatch(types.ApplyPatchType, text)
	err = r.Client.Status().Patch(ctx, object.DeepCopy(), patch, fieldOwner, client.ForceOwnership)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil // Its change starts the next comparison.
	}
	return err == nil, err
}
