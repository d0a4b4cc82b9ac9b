package place

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cluster carries out steps. Each is one request, which may be repeated. Each names the uid of its object, so that it
// never meets another object of the same name.
type cluster struct {
	client client.Client
}

type object = map[string]any

func (c *cluster) carryOut(ctx context.Context, step Step, attempt *Attempt) error {
	var err error
	switch step.Kind {
	case PlacePod:
		err = c.patchPod(ctx, step.Pod, placePatch(step, attempt))
	case DeletePod:
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: step.Pod.Namespace, Name: step.Pod.Name}}
		err = client.IgnoreNotFound(c.client.Delete(ctx, pod, client.Preconditions{UID: &step.Pod.UID}))
	case SuspendJob:
		why := Suspension{attempt.Key, attempt.Undo.Reason, attempt.Undo.Message}
		err = c.patchJob(ctx, step.Job, object{
			"metadata": object{"annotations": object{suspendedAnnotation: why.String()}},
			"spec":     object{"suspend": true},
		})
	case ResumeJob:
		err = c.patchJob(ctx, step.Job, resumePatch(step, attempt))
	case ScaleJob:
		err = c.patchJob(ctx, step.Job, scalePatch(step, attempt))
	case NoteAttempt:
		err = c.patchJob(ctx, step.Job, object{"metadata": object{"annotations": object{
			attemptAnnotation: attempt.Key.String(), planAnnotation: formatPlan(attempt.Plan),
		}}})
	case ForgetSuspend:
		err = c.annotateJob(ctx, step.Job, suspendedAnnotation, "")
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is gone: the watch tells.
	}
	return err
}

func resumePatch(step Step, attempt *Attempt) object {
	annotations := object{
		suspendedAnnotation: nil, attemptAnnotation: attempt.Key.String(), planAnnotation: formatPlan(attempt.Plan),
		resizeAnnotation: nil,
	}
	spec := object{"suspend": false}
	if step.Size > 0 {
		annotations[sizeAnnotation] = strconv.Itoa(step.Job.Size)
		spec["parallelism"], spec["completions"] = step.Size, step.Size
	}
	return object{"metadata": object{"annotations": annotations}, "spec": spec}
}

func scalePatch(step Step, attempt *Attempt) object {
	annotations := object{
		attemptAnnotation: attempt.Key.String(), planAnnotation: formatPlan(attempt.Plan[:step.Size]),
		resizeAnnotation: nil, sizeAnnotation: strconv.Itoa(step.Job.Size),
	}
	if step.Resize != (Resize{}) {
		annotations[resizeAnnotation] = step.Resize.String()
	}
	return object{
		"metadata": object{"annotations": annotations},
		"spec":     object{"parallelism": step.Size, "completions": step.Size},
	}
}

func placePatch(step Step, attempt *Attempt) object {
	slot := attempt.Plan[step.Rank]
	return object{
		"metadata": object{"annotations": object{
			attemptAnnotation: attempt.Key.String(), planAnnotation: formatPlan(attempt.Plan),
			rankAnnotation: strconv.Itoa(step.Rank), nodesAnnotation: strings.Join(nodesOf(attempt.Plan), ","),
		}},
		"spec": object{
			"nodeSelector":    object{corev1.LabelHostname: slot.Node},
			"schedulingGates": []object{{"$patch": "delete", "name": Gate}},
		},
	}
}

func (c *cluster) patchPod(ctx context.Context, pod *Pod, patch object) error {
	named := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	return c.patch(ctx, named, pod.UID, types.StrategicMergePatchType, patch)
}

func (c *cluster) patchJob(ctx context.Context, job *Job, patch object) error {
	return c.patch(ctx, named(job), job.UID, types.MergePatchType, patch)
}

// named returns an object that names a Job or a JobSet.
func named(job *Job) client.Object {
	var object client.Object = &batchv1.Job{}
	if job.Parts != nil {
		object = newJobSet()
	}
	object.SetNamespace(job.Namespace)
	object.SetName(job.Name)
	object.SetUID(job.UID)
	return object
}

// patch fails if another object has the name by now.
func (c *cluster) patch(ctx context.Context, named client.Object, uid types.UID, kind types.PatchType, patch object) error {
	patch["metadata"].(object)["uid"] = uid
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode the patch of %s: %w", named.GetName(), err)
	}
	return c.client.Patch(ctx, named, client.RawPatch(kind, text))
}

// annotateJob sets an annotation of a Job, or removes it if the value is empty.
func (c *cluster) annotateJob(ctx context.Context, job *Job, name, value string) error {
	var set any
	if value != "" {
		set = value
	}
	return client.IgnoreNotFound(c.patchJob(ctx, job, object{"metadata": object{"annotations": object{name: set}}}))
}

// endJob suspends a Job whose job at the allocator has ended, and notes how.
func (c *cluster) endJob(ctx context.Context, job *Job, how string) error {
	return client.IgnoreNotFound(c.patchJob(ctx, job, object{
		"metadata": object{"annotations": object{endedAnnotation: how}}, "spec": object{"suspend": true},
	}))
}
