// Package place lets Larder decide where gated pods run. It mirrors gangs of pods as jobs of the allocator's queue,
// and is the agent that carries out what the allocator decides: docs/engines.md has the protocol, docs/kubernetes.md
// the rules.
//
// The API server keeps all state: which attempt a pod belongs to, and why a Job is suspended, are annotations. So
// another controller goes on where one has ended. decide.go says what follows from a state. It knows no client and no
// clock.
package place

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

// Gate is the scheduling gate of pods that Larder places.
const Gate = "larder.io/placement"

// Annotations that this package writes.
const (
	// attemptAnnotation is JOB.ATTEMPT.QUEUE, the attempt that a pod, a Job or a JobSet belongs to.
	attemptAnnotation = "larder.io/attempt"
	// planAnnotation has NODE=GPUS for each pod of the attempt, in the order of ranks.
	planAnnotation = "larder.io/plan"
	// rankAnnotation is the number of the pod in the plan, from 0.
	rankAnnotation = "larder.io/rank"
	// nodesAnnotation has the nodes of the attempt, each once.
	nodesAnnotation = "larder.io/nodes"
	// suspendedAnnotation is JOB.ATTEMPT.QUEUE REASON MESSAGE: Larder has suspended the Job to end this attempt.
	suspendedAnnotation = "larder.io/suspended"
	// refusedAnnotation says why the allocator does not take a Job.
	refusedAnnotation = "larder.io/refused"
	// endedAnnotation says how Larder's job has ended, of a Job that has not.
	endedAnnotation = "larder.io/ended"
	// withdrawnAnnotation is JOB.QUEUE: Larder has cancelled this job because somebody else has suspended the Job.
	withdrawnAnnotation = "larder.io/withdrawn"
	// resizeAnnotation is WANTED DONE PODS, of an elastic Job: see Resize.
	resizeAnnotation = "larder.io/resize"
	// sizeAnnotation is the number of pods that an elastic Job had before Larder changed it.
	sizeAnnotation = "larder.io/size"
)

// Annotations that users write, on pods or templates of pods.
const (
	gangSizeAnnotation      = "larder.io/gang-size"
	epochsAnnotation        = "larder.io/epochs"
	idealRateAnnotation     = "larder.io/ideal-rate"
	opportunisticAnnotation = "larder.io/opportunistic"
	elasticAnnotation       = "larder.io/elastic"
)

// kueueQueueLabel of a Job names its queue of Kueue.
const kueueQueueLabel = "kueue.x-k8s.io/queue-name"

const graceDefaultS = 30

const queueBytesMax = 64 // of a queue's identity

// Key names an attempt. The zero Key names none. An allocator's queue that was lost is made anew with another identity,
// and may number its jobs from 1 again.
type Key struct {
	Job     int64
	Attempt int64
	Queue   string
}

func (k Key) String() string { return fmt.Sprintf("%d.%d.%s", k.Job, k.Attempt, k.Queue) }

// parseKey returns the zero Key for a text that names no attempt. Users can write any text.
func parseKey(text string) Key {
	job, rest, _ := strings.Cut(text, ".")
	attempt, queue, _ := strings.Cut(rest, ".")
	if queue == "" || len(queue) > queueBytesMax {
		return Key{}
	}
	key := Key{Queue: queue}
	var err error
	if key.Job, err = strconv.ParseInt(job, 10, 64); err != nil || key.Job < 1 {
		return Key{}
	}
	if key.Attempt, err = strconv.ParseInt(attempt, 10, 64); err != nil {
		return Key{}
	}
	if key.Attempt < 1 || key.Attempt > math.MaxUint32 {
		return Key{}
	}
	return key
}

// GangID names a gang. Its name at the allocator is that of its loaders' job.
type GangID struct {
	Namespace string
	Name      string
}

func (g GangID) String() string { return g.Namespace + "/" + g.Name }

// jobName is the gang's name at the allocator. LARDER_JOB of its pods is the same.
func (g GangID) jobName() string { return follow.NamePrefix + g.Namespace + "." + g.Name }

// Work is what a pod needs, as the pod or the template of a Job says it.
type Work struct {
	Dataset       string
	User          *int64 // reads the dataset; nil: unknown
	GPUs          int64
	GraceS        int64
	Epochs        float64
	IdealRate     float64 // f* of the whole gang in bytes/s; 0: unknown
	Opportunistic bool
	// The number of pods of a gang with the label larder.io/gang. 0: the pods do not say it.
	GangSize int
	Elastic  Elastic
	// Why the pod cannot be placed as its annotations ask. Empty: it can.
	Wrong string
}

// Elastic is how many pods a Job may have. The zero Elastic: its number of pods is fixed.
type Elastic struct {
	Least int
	Most  int
}

// parseElastic reads LEAST-MOST.
func parseElastic(text string) (Elastic, error) {
	least, most, _ := strings.Cut(text, "-")
	var elastic Elastic
	var errLeast, errMost error
	elastic.Least, errLeast = strconv.Atoi(least)
	elastic.Most, errMost = strconv.Atoi(most)
	if errLeast != nil || errMost != nil || elastic.Least < 1 || elastic.Most <= elastic.Least || elastic.Most > podsMax {
		return Elastic{}, fmt.Errorf("the annotation %s is %q, but must be a range of pods within 1-%d, such as \"1-8\"",
			elasticAnnotation, shortened(text), podsMax)
	}
	return elastic, nil
}

// Resize is how far the resizes of an attempt have come. The zero Resize: there was none.
type Resize struct {
	// The numbers of the last resize that the Job's size follows, and of the last one that was carried out.
	Wanted int64
	Done   int64
	// The pods of the attempt that have begun before a growth. Those of higher ranks may still begin.
	Pods int
}

func (r Resize) String() string { return fmt.Sprintf("%d %d %d", r.Wanted, r.Done, r.Pods) }

// parseResize returns the zero Resize for a text that is none.
func parseResize(text string) Resize {
	var resize Resize
	read, err := fmt.Sscanf(text, "%d %d %d", &resize.Wanted, &resize.Done, &resize.Pods)
	if err != nil || read != 3 || resize.Done < 0 || resize.Wanted < resize.Done || resize.Pods < 1 {
		return Resize{}
	}
	return resize
}

// Slot is the place of one pod in a plan.
type Slot struct {
	Node string
	GPUs int64
}

// Pod is what decisions need to know of a pod.
type Pod struct {
	Namespace string
	Name      string
	UID       types.UID
	Gang      GangID
	Created   metav1.Time
	Work      Work
	HasOwner  bool // a Job
	Owner     types.UID
	Gated     bool
	Deleting  bool
	Node      string
	Phase     corev1.PodPhase
	ExitCode  int64
	// Why the pod is not scheduled. Empty: nobody has said so.
	Unschedulable string
	// Index of an Indexed Job; -1: none. Of a JobSet, the indexes of its Jobs follow each other.
	Index  int
	Member JobSetMember
	// The controller of its Job, or of its JobSet, may delete it: jobset.go.
	MayGo bool
	// Its JobSet has begun anew since: its controller deletes it, and makes another.
	IsOld bool
	// As this package has written them.
	Attempt Key
	Rank    int
	Plan    []Slot
}

// hasEnded tells whether the pod's containers have ended by themselves.
func (p *Pod) hasEnded() bool { return p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed }

// Suspension is the reason why Larder has suspended a Job.
type Suspension struct {
	Key     Key
	Reason  Reason
	Message string
}

func (s Suspension) String() string { return fmt.Sprintf("%s %s %s", s.Key, s.Reason, s.Message) }

func parseSuspension(text string) *Suspension {
	words := strings.SplitN(text, " ", 3)
	if len(words) < 3 || parseKey(words[0]) == (Key{}) {
		return nil
	}
	reason := Reason(words[1])
	switch reason {
	case Stopped, Rejected, Evicted, Lost:
		return &Suspension{Key: parseKey(words[0]), Reason: reason, Message: shortened(words[2])}
	default:
		return nil
	}
}

// Job is what decisions need to know of a Kubernetes Job, or of a JobSet.
type Job struct {
	Namespace string
	Name      string
	UID       types.UID
	Gang      GangID
	Created   metav1.Time
	Work      Work
	// The pods of a JobSet differ, by part. Nil: this is a Job.
	Parts []Part
	// The JobSet makes some of its Jobs only when others run or have ended.
	IsOrdered bool
	// It says which Job of a JobSet this is. If this is a JobSet, only Restarts counts.
	Member JobSetMember
	// The pods that run at a time.
	Pods int
	// The pods of the Job as its owner wants it; another number than Pods if Larder has changed the size.
	Size int
	// Completions that are missing; -1: nobody has said how many are wanted.
	Left int
	// Each of the pods has an index below the number of pods.
	HasIndexes bool
	// The queue of Kueue that it waits in; empty: none.
	KueueQueue string
	Suspended  bool
	Deleting   bool
	Complete   bool
	Failed     bool
	// It is about to be complete or failed: its controller deletes the other pods.
	Finishing bool
	// It may be complete before all its pods have ended. Its controller then deletes the others before it says so.
	HasSuccessPolicy bool
	// As this package has written them.
	Attempt Key
	Plan    []Slot
	ByUs    *Suspension
	Resize  Resize
	Refused string
	Ended   string
	// Withdrawn is the job that Larder has cancelled, or is about to, because somebody else has suspended the Job.
	Withdrawn string
}

func (j *Job) hasFinished() bool { return j.Complete || j.Failed }

// NodeState tells whether a node takes pods.
type NodeState string

// The states of nodes. Events of these kinds report them.
const (
	NodeBack    NodeState = "node_back"
	NodeDrained NodeState = "node_drained"
	NodeLost    NodeState = "node_lost"
)

func isGated(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.SchedulingGates, func(one corev1.PodSchedulingGate) bool { return one.Name == Gate })
}

// IsJob tells Kubernetes' own Jobs from those of other API groups.
func IsJob(owner *metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	return owner.Kind == "Job" && group == batchv1.GroupName
}

// podOf returns what matters of a pod; nil: Larder does not place it.
func podOf(pod *corev1.Pod, gpuResources []string) *Pod {
	gated := isGated(&pod.Spec)
	attempt := parseKey(pod.Annotations[attemptAnnotation])
	if !gated && attempt == (Key{}) {
		return nil
	}
	owner := metav1.GetControllerOf(pod)
	name := follow.LabelledJob(pod.Labels)
	if name == "" {
		switch {
		case owner == nil:
			name = pod.Name
		case IsJob(owner):
			name = owner.Name
		default:
			return nil
		}
	}
	made := &Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Gang: GangID{pod.Namespace, name},
		Created: pod.CreationTimestamp, Work: workOf(&pod.ObjectMeta, &pod.Spec, gpuResources),
		HasOwner: owner != nil && IsJob(owner), Gated: gated, Deleting: pod.DeletionTimestamp != nil,
		Node: pod.Spec.NodeName, Phase: pod.Status.Phase, ExitCode: exitCodeOf(pod), Index: -1,
		Member: memberOf(pod.Labels), Attempt: attempt, Rank: -1, Plan: parsePlan(pod.Annotations[planAnnotation]),
	}
	if made.HasOwner {
		made.Owner = owner.UID
	}
	if rank, err := strconv.Atoi(pod.Annotations[rankAnnotation]); err == nil {
		made.Rank = rank
	}
	if index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation]); err == nil {
		made.Index = index
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse &&
			condition.Reason == corev1.PodReasonUnschedulable {
			made.Unschedulable = condition.Message
		}
	}
	return made
}

// jobOf returns what matters of a Job; nil: Larder does not place its pods.
func jobOf(job *batchv1.Job, gpuResources []string) *Job {
	if !isGated(&job.Spec.Template.Spec) {
		return nil
	}
	name := follow.LabelledJob(job.Spec.Template.Labels)
	if name == "" {
		name = job.Name
	}
	pods, hasIndexes := podsOf(&job.Spec)
	left := -1
	if job.Spec.Completions != nil {
		left = int(*job.Spec.Completions - job.Status.Succeeded)
	}
	size, err := strconv.Atoi(job.Annotations[sizeAnnotation])
	if err != nil || size < 1 {
		size = pods
	}
	made := &Job{
		Namespace: job.Namespace, Name: job.Name, UID: job.UID, Gang: GangID{job.Namespace, name},
		Created: job.CreationTimestamp,
		Work:    workOf(&job.Spec.Template.ObjectMeta, &job.Spec.Template.Spec, gpuResources), Pods: pods, Left: left,
		Size: size, HasIndexes: hasIndexes, KueueQueue: job.Labels[kueueQueueLabel],
		Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend, Deleting: job.DeletionTimestamp != nil,
		Resize: parseResize(job.Annotations[resizeAnnotation]), HasSuccessPolicy: job.Spec.SuccessPolicy != nil,
	}
	made.takeNotes(job.Annotations)
	if owner := metav1.GetControllerOf(job); owner != nil && IsJobSet(owner) {
		made.Member = memberOf(job.Spec.Template.Labels)
		made.Member.SetUID = owner.UID
	}
	for _, condition := range job.Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		made.Complete = made.Complete || condition.Type == batchv1.JobComplete
		made.Failed = made.Failed || condition.Type == batchv1.JobFailed
		made.Finishing = made.Finishing || condition.Type == batchv1.JobFailureTarget ||
			condition.Type == batchv1.JobSuccessCriteriaMet
	}
	return made
}

// takeNotes reads what this package has written down of a Job or a JobSet.
func (j *Job) takeNotes(annotations map[string]string) {
	j.Attempt, j.Plan = parseKey(annotations[attemptAnnotation]), parsePlan(annotations[planAnnotation])
	j.ByUs, j.Refused = parseSuspension(annotations[suspendedAnnotation]), annotations[refusedAnnotation]
	j.Ended, j.Withdrawn = annotations[endedAnnotation], annotations[withdrawnAnnotation]
}

// podsOf returns how many pods of a Job run at a time, and whether each has an index below that.
func podsOf(spec *batchv1.JobSpec) (pods int, hasIndexes bool) {
	pods = 1
	if spec.Parallelism != nil {
		pods = int(*spec.Parallelism)
	}
	if spec.Completions == nil {
		return pods, false
	}
	isIndexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	return min(pods, int(*spec.Completions)), isIndexed && pods == int(*spec.Completions)
}

// podGPUs returns the GPUs of each pod that runs at a time, or of some, if there are more than a gang may have.
func (j *Job) podGPUs() []int64 {
	if j.Parts == nil {
		return slices.Repeat([]int64{j.Work.GPUs}, min(j.Pods, podsMax+1))
	}
	var gpus []int64
	for _, part := range j.Parts {
		gpus = append(gpus, slices.Repeat([]int64{part.GPUs}, part.pods())...)
		if len(gpus) > podsMax {
			break
		}
	}
	return gpus
}

func workOf(meta *metav1.ObjectMeta, spec *corev1.PodSpec, gpuResources []string) Work {
	work := Work{
		Dataset: meta.Labels[follow.DatasetLabel], User: follow.UserOf(spec), GPUs: follow.GPUsOf(spec, gpuResources), GraceS: graceDefaultS,
		Opportunistic: meta.Annotations[opportunisticAnnotation] == "true",
	}
	if spec.TerminationGracePeriodSeconds != nil {
		work.GraceS = *spec.TerminationGracePeriodSeconds
	}
	// A value that is not a number from 0 on counts as missing.
	if epochs, err := strconv.ParseFloat(meta.Annotations[epochsAnnotation], 64); err == nil &&
		epochs >= 0 && !math.IsInf(epochs, 0) {
		work.Epochs = epochs
	}
	work.IdealRate = parseRate(meta.Annotations[idealRateAnnotation])
	if size, err := strconv.Atoi(meta.Annotations[gangSizeAnnotation]); err == nil {
		work.GangSize = size
	}
	if text, has := meta.Annotations[elasticAnnotation]; has {
		elastic, err := parseElastic(text)
		if err != nil {
			work.Wrong = err.Error()
		}
		work.Elastic = elastic
	}
	return work
}

const rateBytesMax = 40

// parseRate returns 0 for a text that is not a rate above 0, such as "200M".
func parseRate(text string) float64 {
	// ParseQuantity takes minutes for exponents such as that of 1e-999999999.
	at := strings.IndexAny(text, "eE")
	if len(text) > rateBytesMax || (at >= 0 && len(text)-at > len("e+99")) {
		return 0
	}
	rate, err := resource.ParseQuantity(text)
	if err != nil || rate.Sign() <= 0 {
		return 0
	}
	return rate.AsApproximateFloat64()
}

// exitCodeOf returns the exit code of the container that failed; 0: none has, 1: nobody knows which.
func exitCodeOf(pod *corev1.Pod) int64 {
	for i := range pod.Status.ContainerStatuses {
		ended := pod.Status.ContainerStatuses[i].State.Terminated
		if ended != nil && ended.ExitCode > 0 && ended.ExitCode < 256 {
			return int64(ended.ExitCode)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return 1
	}
	return 0
}

// NodeGPUs are the GPUs of a node that pods may have.
type NodeGPUs struct {
	Count int64
	Type  string
	Zone  string
}

// gpuTypeLabel is what NVIDIA's operator calls the type of a node's GPUs.
const gpuTypeLabel = "nvidia.com/gpu.product"

// gpusPerNodeMax is the most GPUs that the allocator takes of one node.
const gpusPerNodeMax = 64

// nodeOf returns a node's state, and its GPUs; nil: it never had one. The kubelet sets the capacity to 0 when the device
// plugin is away for some minutes: the pods that run there go on.
func nodeOf(node *corev1.Node, gpuResources []string) (NodeState, *NodeGPUs) {
	var gpus *NodeGPUs
	for _, name := range gpuResources {
		if _, has := node.Status.Capacity[corev1.ResourceName(name)]; !has {
			continue
		}
		if gpus == nil {
			gpus = &NodeGPUs{Type: shortened(node.Labels[gpuTypeLabel]), Zone: node.Labels[corev1.LabelTopologyZone]}
		}
		allocatable := node.Status.Allocatable[corev1.ResourceName(name)]
		gpus.Count = min(gpus.Count+max(allocatable.Value(), 0), gpusPerNodeMax)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady || condition.Status != corev1.ConditionTrue {
			continue
		}
		if node.Spec.Unschedulable || node.DeletionTimestamp != nil {
			return NodeDrained, gpus
		}
		return NodeBack, gpus
	}
	return NodeLost, gpus
}

func formatPlan(plan []Slot) string {
	words := make([]string, len(plan))
	for i, slot := range plan {
		words[i] = fmt.Sprintf("%s=%d", slot.Node, slot.GPUs)
	}
	return strings.Join(words, ",")
}

// parsePlan returns nil for a text that is no plan.
func parsePlan(text string) []Slot {
	if text == "" {
		return nil
	}
	var plan []Slot
	for _, word := range strings.Split(text, ",") {
		node, gpus, _ := strings.Cut(word, "=")
		count, err := strconv.ParseInt(gpus, 10, 64)
		if err != nil {
			return nil
		}
		plan = append(plan, Slot{Node: node, GPUs: count})
	}
	return plan
}

func nodesOf(plan []Slot) []string {
	var nodes []string
	for _, slot := range plan {
		if !slices.Contains(nodes, slot.Node) {
			nodes = append(nodes, slot.Node)
		}
	}
	return nodes
}
