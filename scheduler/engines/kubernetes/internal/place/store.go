package place

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

// tenantLabel of a namespace names the tenant of its jobs. Without it, that is the namespace's name.
const tenantLabel = "larder.io/tenant"

// members are the objects of one gang.
type members struct {
	jobs map[types.UID]*Job
	pods map[types.UID]*Pod
}

// otherPod is a pod on a node that Larder has not placed there.
type otherPod struct {
	node string
	gpus int64
}

// store keeps what decisions need of the cluster, by gang, as watches tell it. Other objects are not kept. It may be
// used by several goroutines; what it returns is not changed later.
type store struct {
	gpuResources []string
	wake         chan struct{} // has room for one

	lock    sync.Mutex
	gangs   map[GangID]*members
	byUID   map[types.UID]GangID
	nodes   Nodes
	gpus    map[string]NodeGPUs // of the nodes that have some
	others  map[types.UID]otherPod
	taken   map[string]int64 // by node: the GPUs of others
	tenants map[string]string
	names   map[string]struct{} // of all gangs, at the allocator
	dirty   map[GangID]struct{}
	renewed bool // a node has changed
	synced  bool // all objects of the cluster are there
	// Owners of gated pods that Larder does not place, which the log has named.
	named      map[types.UID]struct{}
	hasJobSets chan struct{} // has room for one
}

func newStore(gpuResources []string) *store {
	return &store{
		gpuResources: gpuResources, wake: make(chan struct{}, 1), gangs: make(map[GangID]*members),
		byUID: make(map[types.UID]GangID), nodes: make(Nodes), gpus: make(map[string]NodeGPUs),
		others: make(map[types.UID]otherPod), taken: make(map[string]int64),
		tenants: make(map[string]string), names: make(map[string]struct{}), dirty: make(map[GangID]struct{}),
		named: make(map[types.UID]struct{}), hasJobSets: make(chan struct{}, 1),
	}
}

// watch starts to follow the cluster, and returns once all objects are there.
func (s *store) watch(ctx context.Context, informers cache.Cache) error {
	objects := []client.Object{&corev1.Namespace{}, &corev1.Node{}, &batchv1.Job{}, &corev1.Pod{}}
	if err := s.watchKinds(ctx, informers, objects...); err != nil {
		return err
	}
	if err := s.watchJobSets(ctx, informers); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.synced = true
	return nil
}

// watchJobSets starts to follow JobSets, and returns once all are there. If the cluster does not know this kind, it
// waits in another goroutine for the first Job of one.
func (s *store) watchJobSets(ctx context.Context, informers cache.Cache) error {
	err := s.watchKinds(ctx, informers, newJobSet())
	if !meta.IsNoMatchError(err) {
		return err
	}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-s.hasJobSets:
		}
		log := slog.With("controller", "place")
		// The error is that the context is done.
		_ = retry(ctx, log, "watch JobSets", func() error { return s.watchKinds(ctx, informers, newJobSet()) })
	}()
	return nil
}

// watchKinds starts to follow the kinds of these objects, and returns once all objects of them are there.
func (s *store) watchKinds(ctx context.Context, informers cache.Cache, objects ...client.Object) error {
	var synced []toolscache.InformerSynced
	for _, object := range objects {
		informer, err := informers.GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { s.take(object, false) },
			UpdateFunc: func(_, object any) { s.take(object, false) },
			DeleteFunc: func(object any) { s.take(object, true) },
		})
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
		synced = append(synced, registered.HasSynced)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

func (s *store) take(object any, deleted bool) {
	if last, is := object.(toolscache.DeletedFinalStateUnknown); is {
		object = last.Obj
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	switch one := object.(type) {
	case *corev1.Pod:
		pod := podOf(one, s.gpuResources)
		s.forget(one.UID)
		if pod != nil && !deleted {
			s.gang(pod.Gang, one.UID).pods[one.UID] = pod
		}
		s.takeOther(one, pod == nil && !deleted)
		if pod == nil && isGated(&one.Spec) {
			s.nameOwner(one, deleted)
		}
	case *batchv1.Job:
		job := jobOf(one, s.gpuResources)
		s.takeJob(one.UID, job, deleted)
		if job != nil && job.Member.Set != "" {
			s.noteJobSets()
		}
	case *unstructured.Unstructured:
		s.takeJobSet(one, deleted)
	case *corev1.Node:
		s.takeNode(one, deleted)
	case *corev1.Namespace:
		s.takeNamespace(one, deleted)
	}
}

// takeJob keeps a Job, or a JobSet. Nil: Larder does not place its pods.
func (s *store) takeJob(uid types.UID, job *Job, deleted bool) {
	s.forget(uid)
	if job != nil && !deleted {
		s.gang(job.Gang, uid).jobs[uid] = job
	}
}

// takeJobSet keeps a JobSet.
func (s *store) takeJobSet(object *unstructured.Unstructured, deleted bool) {
	job, err := jobOfSet(object, s.gpuResources)
	if err != nil {
		slog.Error("a JobSet is not placed", "controller", "place", "error", err)
	}
	s.takeJob(object.GetUID(), job, deleted)
}

// noteJobSets tells that there are JobSets, as there is a Job of one.
func (s *store) noteJobSets() {
	select {
	case s.hasJobSets <- struct{}{}:
	default: // It is on its way already.
	}
}

// nameOwner tells once of each owner that its pods wait in vain.
func (s *store) nameOwner(pod *corev1.Pod, deleted bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return
	}
	if deleted {
		delete(s.named, owner.UID)
		return
	}
	if _, is := s.named[owner.UID]; is {
		return
	}
	s.named[owner.UID] = struct{}{}
	slog.Warn("a gated pod is not placed: its owner is no Job of batch/v1, and it has no label "+follow.GangLabel,
		"controller", "place", "pod", pod.Namespace+"/"+pod.Name, "owner", owner.Kind+" of "+owner.APIVersion)
}

// takeOther counts the GPUs that a pod of others has.
func (s *store) takeOther(pod *corev1.Pod, isThere bool) {
	var now otherPod
	hasEnded := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if isThere && pod.Spec.NodeName != "" && !hasEnded {
		now = otherPod{pod.Spec.NodeName, follow.GPUsOf(&pod.Spec, s.gpuResources)}
	}
	before := s.others[pod.UID]
	if now.gpus == 0 {
		now = otherPod{}
	}
	if now == before {
		return
	}
	delete(s.others, pod.UID)
	if s.taken[before.node] -= before.gpus; s.taken[before.node] == 0 {
		delete(s.taken, before.node)
	}
	if now.gpus > 0 {
		s.others[pod.UID] = now
		s.taken[now.node] += now.gpus
	}
	s.renewed = true
	s.wakeUp()
}

// takeNamespace wakes the gangs that wait until their tenant is known.
func (s *store) takeNamespace(namespace *corev1.Namespace, deleted bool) {
	if deleted {
		delete(s.tenants, namespace.Name)
		return
	}
	_, known := s.tenants[namespace.Name]
	s.tenants[namespace.Name] = cmp.Or(namespace.Labels[tenantLabel], namespace.Name)
	if known {
		return
	}
	for id := range s.gangs {
		if id.Namespace == namespace.Name {
			s.mark(id)
		}
	}
}

func (s *store) takeNode(node *corev1.Node, deleted bool) {
	state, gpus := nodeOf(node, s.gpuResources)
	before, known := s.nodes[node.Name]
	had, hadGPUs := s.gpus[node.Name]
	delete(s.gpus, node.Name)
	if deleted {
		delete(s.nodes, node.Name)
	} else {
		s.nodes[node.Name] = state
		if gpus != nil {
			s.gpus[node.Name] = *gpus
		}
	}
	// Heartbeats change nodes every few seconds.
	if deleted || !known || before != state || hadGPUs != (gpus != nil) || (gpus != nil && had != *gpus) {
		s.renewed = true
		s.wakeUp()
	}
}

// gang returns the gang, in which an object is kept from now on.
func (s *store) gang(id GangID, uid types.UID) *members {
	s.mark(id)
	s.byUID[uid] = id
	if s.gangs[id] == nil {
		s.gangs[id] = &members{make(map[types.UID]*Job), make(map[types.UID]*Pod)}
		s.names[id.jobName()] = struct{}{}
	}
	return s.gangs[id]
}

func (s *store) forget(uid types.UID) {
	id, known := s.byUID[uid]
	if !known {
		return
	}
	s.mark(id)
	delete(s.byUID, uid)
	delete(s.gangs[id].jobs, uid)
	delete(s.gangs[id].pods, uid)
	if len(s.gangs[id].jobs)+len(s.gangs[id].pods) == 0 {
		delete(s.gangs, id)
		delete(s.names, id.jobName())
	}
}

func (s *store) mark(id GangID) {
	s.dirty[id] = struct{}{}
	s.wakeUp()
}

func (s *store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // It is awake already.
	}
}

// look again at a gang, although it has not changed.
func (s *store) again(ids ...GangID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, id := range ids {
		s.mark(id)
	}
}

// changed returns the gangs that have changed since the last call, and whether nodes have.
func (s *store) changed() ([]GangID, bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	ids := slices.Collect(maps.Keys(s.dirty))
	renewed := s.renewed
	clear(s.dirty)
	s.renewed = false
	return ids, renewed
}

// all returns all gangs.
func (s *store) all() []GangID {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Collect(maps.Keys(s.gangs))
}

// get returns a gang, which is empty if there is none.
func (s *store) get(id GangID) *Gang {
	s.lock.Lock()
	defer s.lock.Unlock()
	gang := &Gang{ID: id}
	found := s.gangs[id]
	if found == nil {
		return gang
	}
	gang.Jobs = slices.SortedFunc(maps.Values(found.jobs), func(a, b *Job) int {
		return older(a.Created, b.Created, a.Name, b.Name)
	})
	gang.Pods = slices.SortedFunc(maps.Values(found.pods), func(a, b *Pod) int {
		return older(a.Created, b.Created, a.Name, b.Name)
	})
	gang.joinSets()
	return gang
}

func older(a, b metav1.Time, nameA, nameB string) int {
	return cmp.Or(a.Compare(b.Time), cmp.Compare(nameA, nameB))
}

// nodeStates returns the states of all nodes, and the GPUs of those that have some, without the GPUs of others.
func (s *store) nodeStates() (Nodes, map[string]NodeGPUs) {
	s.lock.Lock()
	defer s.lock.Unlock()
	gpus := maps.Clone(s.gpus)
	for node, taken := range s.taken {
		if left, has := gpus[node]; has {
			left.Count = max(0, left.Count-taken)
			gpus[node] = left
		}
	}
	return maps.Clone(s.nodes), gpus
}

// hasName tells whether a gang has this name at the allocator. Until all gangs are known, each name may be that of one.
func (s *store) hasName(name string) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	_, has := s.names[name]
	return has || !s.synced
}

// tenantOf returns the tenant of a namespace, if the watch has told of that.
func (s *store) tenantOf(namespace string) (tenant string, known bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	tenant, known = s.tenants[namespace]
	return tenant, known
}
