package place

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
)

// A JobSet makes Jobs, and its controller resumes each of them that somebody else suspends. So Larder suspends and
// resumes the JobSet itself. A gang has the JobSet as one Job, with the pods of all Jobs that the JobSet makes.

// jobSetKind is read without JobSet's module, which would add its dependencies to this program.
var jobSetKind = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}

// Labels that JobSet's controller sets on its Jobs and their pods, besides follow.JobSetLabel.
const (
	setUIDLabel        = "jobset.sigs.k8s.io/jobset-uid"
	replicatedJobLabel = "jobset.sigs.k8s.io/replicatedjob-name"
	jobIndexLabel      = "jobset.sigs.k8s.io/job-index"
	restartLabel       = "jobset.sigs.k8s.io/restart-attempt"
)

// Part is a ReplicatedJob of a JobSet whose pods Larder places.
type Part struct {
	Name string
	Jobs int
	Pods int   // of each of the Jobs
	GPUs int64 // of each pod
}

// pods returns the pods of all Jobs, or podsMax+1, if there are more than a gang may have.
func (p *Part) pods() int {
	if p.Jobs < 1 || p.Pods < 1 {
		return 0
	}
	if p.Jobs > podsMax || p.Pods > podsMax {
		return podsMax + 1
	}
	return min(p.Jobs*p.Pods, podsMax+1)
}

// JobSetMember says which pod or Job of a JobSet an object is. Without a JobSet, Set is empty.
type JobSetMember struct {
	Set      string    // the JobSet's name
	SetUID   types.UID // empty: its controller, of an older version, does not say it
	Part     string
	JobIndex int
	// How often the JobSet had begun anew when it made the object.
	Restarts int
}

func memberOf(labels map[string]string) JobSetMember {
	member := JobSetMember{
		Set: labels[follow.JobSetLabel], SetUID: types.UID(labels[setUIDLabel]), Part: labels[replicatedJobLabel],
	}
	member.JobIndex, _ = strconv.Atoi(labels[jobIndexLabel]) // Without the labels, there is one Job, which begins once.
	member.Restarts, _ = strconv.Atoi(labels[restartLabel])
	return member
}

// isOf tells a member of this JobSet from one of a JobSet that had the same name.
func (m *JobSetMember) isOf(set *Job) bool {
	return m.Set == set.Name && (m.SetUID == "" || m.SetUID == set.UID)
}

// IsJobSet tells JobSets from other kinds.
func IsJobSet(owner *metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	return owner.Kind == jobSetKind.Kind && group == jobSetKind.Group
}

// jobSet is what this package reads of a JobSet.
type jobSet struct {
	Spec struct {
		Suspend        bool            `json:"suspend"`
		ReplicatedJobs []replicatedJob `json:"replicatedJobs"`
		StartupPolicy  struct {
			Order string `json:"startupPolicyOrder"`
		} `json:"startupPolicy"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Restarts   int                `json:"restarts"`
	} `json:"status"`
}

type replicatedJob struct {
	Name      string                  `json:"name"`
	Replicas  *int32                  `json:"replicas"`
	Template  batchv1.JobTemplateSpec `json:"template"`
	DependsOn []struct{}              `json:"dependsOn"`
}

// jobOfSet returns a JobSet as a Job of its gang; nil: Larder places none of its pods.
func jobOfSet(object *unstructured.Unstructured, gpuResources []string) (*Job, error) {
	var set jobSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &set); err != nil {
		return nil, fmt.Errorf("read JobSet %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	made := &Job{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		Created: object.GetCreationTimestamp(), Suspended: set.Spec.Suspend,
		Deleting:  object.GetDeletionTimestamp() != nil,
		Complete:  meta.IsStatusConditionTrue(set.Status.Conditions, "Completed"),
		Failed:    meta.IsStatusConditionTrue(set.Status.Conditions, "Failed"),
		IsOrdered: set.Spec.StartupPolicy.Order == "InOrder", Member: JobSetMember{Restarts: set.Status.Restarts},
	}
	made.takeNotes(object.GetAnnotations())
	for i := range set.Spec.ReplicatedJobs {
		if one := &set.Spec.ReplicatedJobs[i]; isGated(&one.Template.Spec.Template.Spec) {
			made.addPart(one, gpuResources)
		}
	}
	if len(made.Parts) == 0 {
		return nil, nil
	}
	made.Left = made.Pods
	return made, nil
}

// addPart adds the pods of a ReplicatedJob.
func (j *Job) addPart(from *replicatedJob, gpuResources []string) {
	template := &from.Template.Spec.Template
	work := workOf(&template.ObjectMeta, &template.Spec, gpuResources)
	gang := GangID{j.Namespace, cmp.Or(follow.LabelledJob(template.Labels), j.Name)}
	pods, _ := podsOf(&from.Template.Spec)
	part := Part{Name: from.Name, Jobs: 1, Pods: pods, GPUs: work.GPUs}
	if from.Replicas != nil {
		part.Jobs = int(*from.Replicas)
	}
	if work.Elastic != (Elastic{}) {
		work.Elastic, work.Wrong = Elastic{}, "the annotation "+elasticAnnotation+" is for Jobs, and not for JobSets"
	}
	if len(j.Parts) == 0 {
		j.Work, j.Gang = work, gang
	} else {
		if gang != j.Gang {
			j.Work.Wrong = "the pods of a JobSet are one gang, and these have several values of " + follow.GangLabel
		}
		j.Work.Wrong = cmp.Or(j.Work.Wrong, work.Wrong)
		j.Work.GraceS = max(j.Work.GraceS, work.GraceS)
	}
	j.Parts = append(j.Parts, part)
	j.Pods += part.pods()
	j.Size = j.Pods
	j.IsOrdered = j.IsOrdered || len(from.DependsOn) > 0
}

// rankOf returns the place of a pod among all pods of the JobSet; -1: it has none.
func (j *Job) rankOf(pod *Pod) int {
	if pod.Index < 0 {
		return -1
	}
	before := 0
	for _, part := range j.Parts {
		if part.Name == pod.Member.Part {
			return before + pod.Member.JobIndex*part.Pods + pod.Index
		}
		before += part.pods()
	}
	return -1
}

// completions returns how many completions are missing of a Job.
func (j *Job) completions() int {
	switch {
	case j.hasFinished():
		return 0
	case j.Left >= 0:
		return min(j.Pods, j.Left)
	default:
		return j.Pods
	}
}

// joinSets puts the JobSets of a gang in the place of the Jobs that they have made, and makes them the owners of these
// Jobs' pods. Jobs whose JobSet is not there count for nothing: the JobSet is not known yet, or is gone.
func (g *Gang) joinSets() {
	all := g.Jobs
	g.Jobs = slices.DeleteFunc(slices.Clone(all), func(job *Job) bool { return job.Member.Set != "" })
	sets := make(map[string]*Job)
	ending := g.endingOfSets(all)
	for i, job := range g.Jobs {
		if job.Parts == nil {
			continue
		}
		joined := *job
		for _, one := range all {
			if one.Member.isOf(job) && one.Member.Restarts == job.Member.Restarts {
				joined.Left -= one.Pods - one.completions()
				joined.Finishing = joined.Finishing || (one.Finishing && !one.hasFinished())
			}
		}
		g.Jobs[i] = &joined
		sets[job.Name] = &joined
	}
	for i, pod := range g.Pods {
		if set := sets[pod.Member.Set]; set != nil && pod.Member.isOf(set) && pod.HasOwner {
			joined := *pod
			_, isEnding := ending[pod.Owner]
			joined.Owner, joined.Index, joined.IsOld = set.UID, set.rankOf(pod), pod.Member.Restarts < set.Member.Restarts
			joined.MayGo = isEnding || joined.IsOld
			g.Pods[i] = &joined
		}
	}
}

// endingOfSets returns which Jobs of JobSets may delete their pods, as they end or are deleted.
func (g *Gang) endingOfSets(jobs []*Job) map[types.UID]struct{} {
	ending := make(map[types.UID]struct{})
	for _, job := range jobs {
		hasSucceeded := job.HasSuccessPolicy && slices.ContainsFunc(g.Pods, func(pod *Pod) bool {
			return pod.Owner == job.UID && pod.Phase == corev1.PodSucceeded
		})
		if job.Member.Set != "" && (job.Deleting || job.Finishing || job.hasFinished() || hasSucceeded) {
			ending[job.UID] = struct{}{}
		}
	}
	return ending
}

// restarts returns how often JobSets of the gang have begun anew.
func (g *Gang) restarts() int {
	restarts := 0
	for _, job := range g.Jobs {
		restarts += job.Member.Restarts
	}
	return restarts
}

// isOrdered tells whether a JobSet makes some pods only when others run or have ended.
func (g *Gang) isOrdered() bool {
	return slices.ContainsFunc(g.Jobs, func(job *Job) bool { return job.IsOrdered })
}

// isClearing tells whether pods of an attempt still run whose JobSet has finished: its controller deletes them after
// that. Pods on lost nodes are not waited for.
func (g *Gang) isClearing(key Key, nodes Nodes) bool {
	finished := make(map[types.UID]struct{})
	for _, job := range g.Jobs {
		if job.Parts != nil && job.hasFinished() {
			finished[job.UID] = struct{}{}
		}
	}
	return slices.ContainsFunc(g.Pods, func(pod *Pod) bool {
		_, is := finished[pod.Owner]
		isLost := pod.Node != "" && nodes.state(pod.Node) == NodeLost
		return is && pod.Attempt == key && !pod.hasEnded() && !isLost
	})
}

// noteRestart notes which pods go because their JobSet begins anew. Some may be gone already. If none stays, the gang has
// not begun: its nodes must take pods, also one that was cordoned since, or it goes elsewhere.
func (a *Attempt) noteRestart(gang *Gang) {
	restarts := gang.restarts()
	if restarts == a.restarts {
		return
	}
	a.restarts = restarts
	stay := make(map[types.UID]struct{})
	for _, pod := range gang.Pods {
		if !pod.IsOld {
			stay[pod.UID] = struct{}{}
		}
	}
	clear(a.replaced)
	clear(a.ended) // look notes the pods that have ended since.
	a.Begun = a.Begun && slices.ContainsFunc(a.pods, func(uid types.UID) bool { return isIn(stay, uid) })
	for _, uid := range a.pods {
		if !isIn(stay, uid) {
			a.replaced[uid] = struct{}{}
		}
	}
}

func isIn(uids map[types.UID]struct{}, uid types.UID) bool {
	_, has := uids[uid]
	return has
}

// notes returns the steps that note the attempt on the gang's JobSets. While a JobSet begins anew, it may have no pod of
// the attempt: another controller finds the attempt there.
func (a *Attempt) notes(gang *Gang) []Step {
	var steps []Step
	for _, job := range gang.Jobs {
		if job.Parts != nil && job.Attempt != a.Key && !job.hasFinished() {
			steps = append(steps, Step{Kind: NoteAttempt, Job: job})
		}
	}
	return steps
}

// newJobSet returns an empty JobSet, for requests that name one.
func newJobSet() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(jobSetKind)
	return object
}
