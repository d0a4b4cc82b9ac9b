package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

// podsMax is the most pods that the allocator takes in one gang.
const podsMax = 256

// Gang is the Jobs and the pods that run together, as the API server has them, the oldest first.
type Gang struct {
	ID   GangID
	Jobs []*Job
	Pods []*Pod
}

// uid tells a gang from a later one of the same name.
func (g *Gang) uid() string {
	if len(g.Jobs) > 0 {
		return string(g.Jobs[0].UID)
	}
	if len(g.Pods) > 0 {
		return string(g.Pods[0].UID)
	}
	return ""
}

// isOf tells whether this is the gang that has a job. The object whose uid the job has may go before the others, as a
// finished Job does. Then the others have the job's attempts.
func (g *Gang) isOf(known mirrored) bool {
	owners := make(map[types.UID]struct{}, len(g.Jobs))
	for _, job := range g.Jobs {
		isByUs := job.ByUs != nil && known.has(job.ByUs.Key)
		if string(job.UID) == known.uid || known.has(job.Attempt) || isByUs {
			return true
		}
		owners[job.UID] = struct{}{}
	}
	return slices.ContainsFunc(g.Pods, func(pod *Pod) bool {
		_, hasJob := owners[pod.Owner]
		goesOn := !pod.Deleting && (hasJob || !pod.HasOwner)
		return string(pod.UID) == known.uid || (goesOn && known.has(pod.Attempt))
	})
}

// created returns when the oldest object of the gang was made.
func (g *Gang) created() time.Time {
	if len(g.Jobs) > 0 {
		return g.Jobs[0].Created.Time
	}
	if len(g.Pods) > 0 {
		return g.Pods[0].Created.Time
	}
	return time.Time{}
}

// isGone tells whether there is nothing left to run. Pods may be left whose Job was deleted: they go, too.
func (g *Gang) isGone() bool {
	return len(g.Jobs) == 0 && !slices.ContainsFunc(g.Pods, func(pod *Pod) bool { return !pod.HasOwner })
}

// hasEnded tells whether all Jobs and all other pods of the gang have ended by themselves, and whether one has failed.
func (g *Gang) hasEnded() (ended, failed bool) {
	if g.isGone() {
		return false, false
	}
	for _, job := range g.Jobs {
		if !job.hasFinished() {
			return false, false
		}
		failed = failed || job.Failed
	}
	for _, pod := range g.Pods {
		if !pod.HasOwner && !pod.hasEnded() {
			return false, false
		}
		failed = failed || (!pod.HasOwner && pod.Phase == corev1.PodFailed)
	}
	return true, failed
}

// isSeenLate tells whether a Job has finished while its pods seem to run. A Job finishes after its pods have ended, but
// the watch of pods may be behind that of Jobs.
func (g *Gang) isSeenLate() bool {
	return slices.ContainsFunc(g.Jobs, func(job *Job) bool {
		return job.hasFinished() && slices.ContainsFunc(g.Pods, func(pod *Pod) bool {
			return pod.Owner == job.UID && !pod.Deleting && !pod.hasEnded()
		})
	})
}

// isSuspendedByOthers tells whether a Job was suspended by somebody else than Larder.
func (g *Gang) isSuspendedByOthers() bool {
	return slices.ContainsFunc(g.Jobs, func(job *Job) bool { return job.Suspended && job.ByUs == nil })
}

// needs returns how many pods of a plan can run at once: fewer than planned if most completions of a Job are done.
func (g *Gang) needs(planned int) int {
	if len(g.Jobs) == 0 {
		return planned
	}
	pods := 0
	for _, job := range g.Jobs {
		pods += job.completions()
	}
	for _, pod := range g.Pods {
		if !pod.HasOwner {
			pods++
		}
	}
	return min(planned, pods)
}

// elastic returns the Job of an elastic gang; nil: the gang's size is fixed.
func (g *Gang) elastic() *Job {
	if len(g.Jobs) == 1 && g.Jobs[0].Work.Elastic != (Elastic{}) {
		return g.Jobs[0]
	}
	return nil
}

// checkElastic returns why the gang cannot be elastic, if it asks for that.
func (g *Gang) checkElastic() error {
	for _, pod := range g.Pods {
		if isAlone := !pod.HasOwner && !pod.hasEnded(); isAlone && pod.Work.Elastic != (Elastic{}) {
			return fmt.Errorf("%s is for Jobs, and pod %s has none", elasticAnnotation, pod.Name)
		}
	}
	for _, job := range g.Jobs {
		isAlone := len(g.Jobs) == 1 && !slices.ContainsFunc(g.Pods, func(pod *Pod) bool { return !pod.HasOwner })
		elastic := job.Work.Elastic
		switch {
		case elastic == Elastic{}:
		case !isAlone || job.Work.GangSize > 0:
			return fmt.Errorf("%s is for a Job that is a gang of its own, without %s", elasticAnnotation, gangSizeAnnotation)
		case !job.HasIndexes:
			return fmt.Errorf("%s is for a Job with completionMode Indexed, and as many completions as parallelism",
				elasticAnnotation)
		case job.Size < elastic.Least || job.Size > elastic.Most:
			return fmt.Errorf("the Job has %d pods, and %s is %d-%d", job.Size, elasticAnnotation, elastic.Least, elastic.Most)
		case job.KueueQueue != "":
			return fmt.Errorf("%s is not for Jobs in a queue of Kueue, which stops a Job whose size changes", elasticAnnotation)
		}
	}
	return nil
}

// sizes returns the GPUs of each pod of the gang, the most first. An error says why the gang is not whole or cannot be
// placed.
func (g *Gang) sizes() ([]int64, error) {
	if err := g.checkElastic(); err != nil {
		return nil, err
	}
	var sizes []int64
	wanted := 0
	wrong := ""
	add := func(work Work, gpus ...int64) {
		wanted = max(wanted, work.GangSize)
		wrong = cmp.Or(wrong, work.Wrong)
		sizes = append(sizes, gpus...)
	}
	for _, job := range g.Jobs {
		if job == g.elastic() {
			add(job.Work, slices.Repeat([]int64{job.Work.GPUs}, job.Size)...)
		} else {
			add(job.Work, job.podGPUs()...)
		}
	}
	for _, pod := range g.Pods {
		if !pod.HasOwner && !pod.hasEnded() && !pod.Deleting {
			add(pod.Work, pod.Work.GPUs)
		}
	}
	isOneJob := len(g.Jobs) == 1 && g.Jobs[0].Name == g.ID.Name
	isOnePod := len(g.Pods) == 1 && g.Pods[0].Name == g.ID.Name
	switch {
	case wrong != "":
		return nil, errors.New(wrong)
	case len(sizes) > podsMax:
		return nil, fmt.Errorf("it has more than %d pods, which is the most that one gang may have", podsMax)
	case wanted == 0 && !isOneJob && !isOnePod:
		return nil, fmt.Errorf("the annotation %s is missing: it says how many pods are one gang", gangSizeAnnotation)
	case wanted > len(sizes):
		return nil, fmt.Errorf("%d pods of %d are there", len(sizes), wanted)
	case wanted > 0 && wanted < len(sizes):
		return nil, fmt.Errorf("there are %d pods, and %s is %d", len(sizes), gangSizeAnnotation, wanted)
	case len(sizes) == 0:
		return nil, errors.New("it has no pods")
	case slices.Min(sizes) < 1:
		return nil, fmt.Errorf("a pod requests no GPU")
	}
	slices.SortFunc(sizes, func(a, b int64) int { return cmp.Compare(b, a) })
	return sizes, nil
}

// isPresent tells whether the gang is there, has not ended, and may run.
func (g *Gang) isPresent() bool {
	if ended, _ := g.hasEnded(); ended || g.isGone() {
		return false
	}
	leaves := slices.ContainsFunc(g.Jobs, func(job *Job) bool { return job.Deleting || job.Ended != "" })
	return !leaves && !g.isSuspendedByOthers()
}

// Parameters of a submission, by which its gang is found again.
const (
	namespaceParameter = "kubernetes.namespace"
	nameParameter      = "kubernetes.name"
	uidParameter       = "kubernetes.uid"
)

func gangOf(parameters map[string]string) (GangID, bool) {
	id := GangID{parameters[namespaceParameter], parameters[nameParameter]}
	return id, id.Namespace != "" && id.Name != "" && parameters[uidParameter] != ""
}

// submission returns the job that the gang is for the allocator.
func (g *Gang) submission(tenant string) (allocator.Submission, error) {
	sizes, err := g.sizes()
	if err != nil {
		return allocator.Submission{}, err
	}
	var work Work
	if len(g.Jobs) > 0 {
		work = g.Jobs[0].Work
	} else {
		work = g.Pods[0].Work
	}
	if work.Dataset == "" {
		work.Epochs, work.IdealRate = 0, 0 // There is nothing to count.
	}
	var gpus int64
	for _, size := range sizes {
		gpus += size
	}
	made := allocator.Submission{
		Name: g.ID.jobName(), Command: []string{"kubernetes"}, Directory: "/", Tenant: tenant, GPUs: gpus, Pods: sizes,
		Dataset: work.Dataset, ReaderUID: work.User, Epochs: work.Epochs, IdealRate: work.IdealRate, GraceS: float64(work.GraceS), Opportunistic: work.Opportunistic,
		// Pods without a Job would not come back.
		Preemptible: len(g.Jobs) > 0 || work.Opportunistic,
		EngineParameters: map[string]string{
			namespaceParameter: g.ID.Namespace, nameParameter: g.ID.Name, uidParameter: g.uid(),
		},
	}
	if g.elastic() != nil {
		made.Elastic = true
		made.GPUsMin, made.GPUsMax = int64(work.Elastic.Least)*work.GPUs, int64(work.Elastic.Most)*work.GPUs
	}
	return made, nil
}

// planFor divides what the allocator has decided among the gang's pods.
func (g *Gang) planFor(tasks []allocator.EngineTask) ([]Slot, error) {
	job := g.elastic()
	if job == nil {
		sizes, err := g.sizes()
		if err != nil {
			return nil, err
		}
		return planOf(tasks, sizes)
	}
	if job.Work.GPUs < 1 {
		return nil, errNoPlan
	}
	var gpus int64
	for _, task := range tasks {
		gpus += int64(len(task.GPUs))
	}
	pods, elastic := int(gpus/job.Work.GPUs), job.Work.Elastic
	if pods < elastic.Least || pods > elastic.Most {
		return nil, fmt.Errorf("the Job may have %d to %d pods, and not %d", elastic.Least, elastic.Most, pods)
	}
	return planOf(tasks, slices.Repeat([]int64{job.Work.GPUs}, pods))
}
