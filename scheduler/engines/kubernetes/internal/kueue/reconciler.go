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
	"reflect"
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
}

// claim is what all Workloads of one job ask for together.
type claim struct {
	request
	workloads []*workload
}

// SetUp registers the comparison with a manager. Caches fill without an event in Kubernetes, so it runs every interval.
func (r *Reconciler) SetUp(manager ctrl.Manager, interval time.Duration) error {
	for _, kind := range []schema.GroupVersionKind{checkKind, workloadKind} {
		if _, err := manager.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); err != nil {
			return fmt.Errorf("find %s of Kueue: install Kueue 0.15 or later first: %w", kind.Kind, err)
		}
	}
	return loop.SetUp(manager, "kueue", interval, r.Compare,
		loop.Watched{Object: empty(checkKind)}, loop.Watched{Object: empty(workloadKind)})
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
	jobs, err := r.Allocator.Jobs(ctx)
	if err != nil {
		return fmt.Errorf("list the allocator's jobs: %w", err)
	}
	known := make(map[string]*allocator.Job, len(jobs))
	for i := range jobs {
		if jobs[i].Registered {
			known[jobs[i].Name] = &jobs[i]
		}
	}
	failed := []error{r.release(ctx, known, claims)}
	var now *cluster
	if len(waiting) > 0 {
		if now, err = readCluster(ctx, r.Allocator); err != nil {
			return err
		}
	}
	for _, one := range slices.SortedFunc(maps.Values(claims), byQuota) {
		failed = append(failed, r.serve(ctx, one, known[one.job], now, waiting))
	}
	for w, state := range waiting {
		failed = append(failed, r.write(ctx, w, state))
	}
	return errors.Join(failed...)
}

// byQuota sorts what has waited longest first.
func byQuota(a, b *claim) int {
	first, second := a.workloads[0].quotaSince(), b.workloads[0].quotaSince()
	return cmp.Or(first.Compare(second.Time), cmp.Compare(a.job, b.job))
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
		if err := r.apply(ctx, checkKind, check, status); err != nil {
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
		state := one.stateOf(checks)
		if state == nil || !one.holdsQuota() || state.State == stateRetry || state.State == stateRejected {
			continue
		}
		waits := state.State == statePending
		if waits {
			waiting[one] = &checkState{Name: state.Name, State: statePending, Message: state.Message}
		}
		asked, err := requestOf(one)
		if err == nil && asked.job != "" && claims[asked.job] != nil {
			err = claims[asked.job].add(asked)
		} else if err == nil && asked.job != "" {
			claims[asked.job] = &claim{request: asked}
		}
		switch {
		case err != nil && waits:
			waiting[one].State, waiting[one].Message = stateRejected, err.Error()
		case err != nil:
		case asked.job != "":
			claims[asked.job].workloads = append(claims[asked.job].workloads, one)
		case waits:
			r.admit(one, waiting[one], "There is nothing to reserve.", "")
		}
	}
	return waiting, claims, nil
}

// serve reserves for one job, and answers its Workloads that wait.
func (r *Reconciler) serve(ctx context.Context, one *claim, row *allocator.Job, now *cluster,
	waiting map[*workload]*checkState) error {
	answer := func(set func(w *workload, state *checkState)) {
		for _, w := range one.workloads {
			if state := waiting[w]; state != nil {
				set(w, state)
			}
		}
	}
	waits := slices.ContainsFunc(one.workloads, func(w *workload) bool { return waiting[w] != nil })
	if waits {
		if refused, err := r.refusal(ctx, one, now); err != nil {
			return err
		} else if refused != nil {
			answer(func(w *workload, state *checkState) {
				state.State, state.Message = refused.State, refused.Message
				r.loseQuota(w, state)
			})
			return nil
		}
	}
	isReserved := row != nil && row.Dataset == one.dataset && row.CacheBytes == one.CacheBytes &&
		row.BandwidthBytesPerSecond == one.BandwidthBytesPerSecond
	if !isReserved {
		err := r.reserve(ctx, one, row)
		if wire.IsStatus(err, http.StatusInsufficientStorage) || wire.IsStatus(err, http.StatusServiceUnavailable) {
			answer(func(w *workload, state *checkState) {
				state.Message = "Waits for cache and bandwidth: " + err.Error()
				r.loseQuota(w, state)
			})
			return nil
		}
		if err != nil {
			return fmt.Errorf("job %s: %w", one.job, err)
		}
	}
	if one.CacheBytes > 0 && (!isReserved || !row.Staged) {
		answer(func(_ *workload, state *checkState) {
			state.Message = "Cache and bandwidth are reserved. The cache fills."
		})
		return nil
	}
	answer(func(w *workload, state *checkState) {
		r.admit(w, state, "Cache and bandwidth are reserved.", now.onlyNode(one.dataset))
	})
	return nil
}

// refusal returns the answer to a job that cannot have what it asks for, now or ever; nil: it may have it.
func (r *Reconciler) refusal(ctx context.Context, one *claim, now *cluster) (*checkState, error) {
	if len(now.nodes[one.dataset]) > 0 {
		if err := now.mayEverHave(&one.request); err != nil {
			return &checkState{State: stateRejected, Message: err.Error()}, nil
		}
		return nil, nil
	}
	err := r.Client.Get(ctx, client.ObjectKey{Name: one.dataset}, &v1alpha1.Dataset{})
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Dataset %s: %w", one.dataset, err)
	}
	if err != nil {
		message := fmt.Sprintf("no node has a dataset %q, and there is no such Dataset", one.dataset)
		return &checkState{State: stateRejected, Message: message}, nil
	}
	message := fmt.Sprintf("no node has dataset %q yet: `kubectl events --for dataset/%s` says why", one.dataset,
		one.dataset)
	return &checkState{State: statePending, Message: message}, nil
}

// loseQuota makes a Workload queue again that has waited too long. Kueue could delay that, but it would keep the quota
// meanwhile.
func (r *Reconciler) loseQuota(w *workload, state *checkState) {
	since := w.quotaSince()
	if state.State == statePending && time.Since(since.Time) > r.Patience {
		state.State = stateRetry
	}
}

func (r *Reconciler) reserve(ctx context.Context, one *claim, row *allocator.Job) error {
	if row != nil && row.Dataset != one.dataset {
		if err := r.Allocator.Remove(ctx, one.job); err != nil {
			return fmt.Errorf("remove what was registered for dataset %s: %w", row.Dataset, err)
		}
		row = nil
	}
	if row == nil {
		registration := allocator.Registration{Name: one.job, Dataset: one.dataset, User: one.user}
		if err := r.Allocator.Register(ctx, registration); err != nil && !wire.IsStatus(err, http.StatusConflict) {
			return fmt.Errorf("register: %w", err)
		}
	}
	if err := r.Allocator.Reserve(ctx, one.job, one.Reservation); err != nil {
		return fmt.Errorf("reserve: %w", err)
	}
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
			if onlyNode != "" {
				update.NodeSelector = map[string]string{corev1.LabelHostname: onlyNode}
			}
			maps.DeleteFunc(update.NodeSelector, func(label, _ string) bool {
				_, has := set.Template.Spec.NodeSelector[label]
				return has
			})
		}
		state.PodSetUpdates = append(state.PodSetUpdates, update)
	}
}

// write answers a Workload, if the answer is new.
func (r *Reconciler) write(ctx context.Context, w *workload, state *checkState) error {
	before := w.stateOf(map[string]struct{}{state.Name: {}})
	if len(state.Message) > messageBytesMax {
		state.Message = strings.ToValidUTF8(state.Message[:messageBytesMax], "")
	}
	state.LastTransitionTime = before.LastTransitionTime
	if reflect.DeepEqual(before.Message, state.Message) && before.State == state.State {
		return nil
	}
	if before.State != state.State {
		state.LastTransitionTime = metav1.Now()
	}
	object := empty(workloadKind)
	object.SetName(w.Metadata.Name)
	object.SetNamespace(w.Metadata.Namespace)
	object.SetUID(w.Metadata.UID)
	object.SetResourceVersion(w.Metadata.ResourceVersion)
	status := map[string]any{"admissionChecks": []checkState{*state}}
	if err := r.apply(ctx, workloadKind, object, status); err != nil {
		return fmt.Errorf("answer Workload %s: %w", w, err)
	}
	if r.Events != nil && state.State != stateReady && state.State != statePending {
		r.Events.Eventf(shownTo(w), object, corev1.EventTypeWarning, "Storage"+state.State, "AdmissionCheck", "%s",
			state.Message)
	}
	return nil
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

// apply writes a part of the status of an object, if the object has not changed since it was read.
func (r *Reconciler) apply(ctx context.Context, kind schema.GroupVersionKind, object *unstructured.Unstructured,
	status map[string]any) error {
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
		return fmt.Errorf("encode the status: %w", err)
	}
	patch := client.RawPatch(types.ApplyPatchType, text)
	err = r.Client.Status().Patch(ctx, object.DeepCopy(), patch, fieldOwner, client.ForceOwnership)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // Its change starts the next comparison.
	}
	return err
}
