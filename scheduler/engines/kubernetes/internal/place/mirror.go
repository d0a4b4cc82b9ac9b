package place

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

const (
	submissionsMax = 500
	// A gang that the allocator does not take is submitted again after this time.
	refusedAgain = 30 * time.Second
)

// Queue is what a mirror needs of the allocator's API.
type Queue interface {
	Submit(ctx context.Context, jobs []allocator.Submission) ([]int64, error)
	Queue(ctx context.Context) (allocator.Queue, error)
	QueueJob(ctx context.Context, name string) (allocator.QueueJob, error)
	Cancel(ctx context.Context, id int64) error
}

// mirrored is a gang's job in the allocator's queue.
type mirrored struct {
	id    int64
	uid   string
	queue string // the identity of its queue
}

func (m mirrored) withdrawn() string { return fmt.Sprintf("%d.%s", m.id, m.queue) }

// has tells whether an attempt is one of this job.
func (m mirrored) has(attempt Key) bool { return attempt.Job == m.id && attempt.Queue == m.queue }

// refusal is why a gang has no job.
type refusal struct {
	reason string
	again  time.Time
}

// mirror keeps one job of the allocator's queue for each gang. One goroutine.
type mirror struct {
	queue   Queue
	cluster *cluster
	store   *store
	log     *slog.Logger
	events  events.EventRecorder // nil: none are written
	known   map[GangID]mirrored
	// The identity of the allocator's queue, as it was last listed.
	identity string
	refused  map[GangID]refusal
	// The last job of a gang that this mirror has cancelled, because the gang was gone or suspended.
	cancelled map[GangID]int64
	// Gangs that are older may have had a job that has ended.
	since time.Time
}

func newMirror(queue Queue, to *cluster, from *store, log *slog.Logger, now time.Time) *mirror {
	return &mirror{queue: queue, cluster: to, store: from, log: log, known: make(map[GangID]mirrored),
		refused: make(map[GangID]refusal), cancelled: make(map[GangID]int64), since: now}
}

// refresh asks for the queue. It returns the gangs to look at: those that have a job, or had one.
func (m *mirror) refresh(ctx context.Context) ([]GangID, error) {
	queue, err := m.queue.Queue(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the queue: %w", err)
	}
	before := m.known
	m.identity = queue.ID
	m.known = make(map[GangID]mirrored, len(queue.Jobs))
	var ids []GangID
	for _, job := range queue.Jobs {
		// A job that only names a gang of others has another name.
		if id, ours := gangOf(job.EngineParameters); ours && job.Name == id.jobName() {
			m.known[id] = mirrored{job.ID, job.EngineParameters[uidParameter], queue.ID}
			ids = append(ids, id)
		}
	}
	for id := range before {
		if _, still := m.known[id]; !still {
			ids = append(ids, id)
			m.since = time.Now() // It has ended, maybe not by its gang.
		}
	}
	return ids, nil
}

// ended notes that the job of a gang has ended.
func (m *mirror) ended(id GangID) { delete(m.known, id) }

// sync submits the gangs that have no job, and cancels the jobs of gangs that are gone. hasAttempt tells whether a gang
// has an attempt, whose end is reported otherwise.
func (m *mirror) sync(ctx context.Context, ids []GangID, hasAttempt func(GangID) bool) error {
	var failed []error
	var gangs []*Gang
	var submissions []allocator.Submission
	for _, id := range ids {
		gang := m.store.get(id)
		known, has := m.known[id]
		switch {
		case has && (!gang.isPresent() || !gang.isOf(known)):
			ended, _ := gang.hasEnded()
			if ended && hasAttempt(id) && gang.isOf(known) {
				continue
			}
			if err := m.noteWithdrawn(ctx, gang, known); err != nil {
				failed = append(failed, err)
				continue
			}
			if err := m.cancel(ctx, known.id); err != nil {
				failed = append(failed, fmt.Errorf("cancel the job of %s: %w", id, err))
				continue
			}
			// Its name is free once it has ended.
			delete(m.known, id)
			m.cancelled[id] = known.id
		case !has && gang.isPresent() && !hasAttempt(id) && !time.Now().Before(m.refused[id].again):
			tenant, found := m.store.tenantOf(id.Namespace)
			if !found {
				continue // The gang is looked at again when the watch has told of its namespace.
			}
			submission, err := gang.submission(tenant)
			if err != nil {
				// The gang is looked at again when it has changed.
				failed = append(failed, m.noteRefusal(ctx, gang, err.Error(), time.Time{}))
				continue
			}
			ended, err := m.noteEnded(ctx, gang, submission.Name)
			if err != nil {
				failed = append(failed, err)
			} else if !ended {
				gangs = append(gangs, gang)
				submissions = append(submissions, submission)
			}
		case len(gang.Jobs)+len(gang.Pods) == 0:
			delete(m.refused, id)
			delete(m.cancelled, id)
		}
	}
	for first := 0; first < len(gangs); first += submissionsMax {
		last := min(first+submissionsMax, len(gangs))
		failed = append(failed, m.submit(ctx, gangs[first:last], submissions[first:last]))
	}
	return errors.Join(failed...)
}

// noteWithdrawn notes which job is about to be cancelled because somebody else has suspended its gang. So another
// controller knows that this job has not ended before its gang.
func (m *mirror) noteWithdrawn(ctx context.Context, gang *Gang, known mirrored) error {
	if !gang.isSuspendedByOthers() {
		return nil
	}
	for _, job := range gang.Jobs {
		if err := m.cluster.annotateJob(ctx, job, withdrawnAnnotation, known.withdrawn()); err != nil {
			return fmt.Errorf("annotate Job %s: %w", job.Name, err)
		}
	}
	return nil
}

func (m *mirror) cancel(ctx context.Context, id int64) error {
	err := m.queue.Cancel(ctx, id)
	if wire.IsStatus(err, http.StatusNotFound) || wire.IsStatus(err, http.StatusConflict) {
		return nil // It has ended.
	}
	return err
}

// noteEnded tells whether the job of this very gang has ended before the gang has. Then it must not run again: its Jobs
// are suspended.
func (m *mirror) noteEnded(ctx context.Context, gang *Gang, name string) (bool, error) {
	if gang.created().After(m.since) {
		return false, nil
	}
	job, err := m.queue.QueueJob(ctx, name)
	if wire.IsStatus(err, http.StatusNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for job %s: %w", name, err)
	}
	last := mirrored{job.ID, job.EngineParameters[uidParameter], m.identity}
	isWithdrawn := m.cancelled[gang.ID] == job.ID ||
		slices.ContainsFunc(gang.Jobs, func(one *Job) bool { return one.Withdrawn == last.withdrawn() })
	if !gang.isOf(last) || !job.HasEnded() || isWithdrawn {
		return false, nil
	}
	text := job.State
	if job.EndReason != "" {
		text += ": " + job.EndReason
	}
	for _, one := range gang.Jobs {
		if err := m.cluster.endJob(ctx, one, text); err != nil {
			return false, fmt.Errorf("suspend Job %s, whose job at the allocator has ended: %w", one.Name, err)
		}
	}
	return true, nil
}

// submit submits gangs together, and, if one is refused, each by itself.
func (m *mirror) submit(ctx context.Context, gangs []*Gang, submissions []allocator.Submission) error {
	ids, err := m.queue.Submit(ctx, submissions)
	if err == nil {
		for i, gang := range gangs {
			m.known[gang.ID] = mirrored{ids[i], gang.uid(), m.identity}
			delete(m.refused, gang.ID)
			if err := m.annotate(ctx, gang, ""); err != nil {
				m.log.Warn("cannot remove the note of a refusal", "gang", gang.ID.String(), "error", err)
			}
		}
		return nil
	}
	var status *wire.StatusError
	isRefused := errors.As(err, &status) && !isForLater(status.Status)
	if !isRefused && !errors.Is(err, wire.ErrEncode) {
		return fmt.Errorf("submit %d jobs: %w", len(gangs), err)
	}
	if len(gangs) == 1 {
		return m.refuse(ctx, gangs[0], err)
	}
	var failed []error
	for i := range gangs {
		failed = append(failed, m.submit(ctx, gangs[i:i+1], submissions[i:i+1]))
	}
	return errors.Join(failed...)
}

// isForLater tells whether an answer says nothing about the request: no allocator leads, or it has too much to do.
func isForLater(status int) bool {
	return status == http.StatusMisdirectedRequest || status == http.StatusServiceUnavailable ||
		status == http.StatusTooManyRequests
}

// refuse notes why the allocator does not take a gang. A name that is in use is free soon, as the job before is ending.
func (m *mirror) refuse(ctx context.Context, gang *Gang, why error) error {
	if errors.Is(why, wire.ErrEncode) {
		return m.noteRefusal(ctx, gang, why.Error(), time.Now().Add(refusedAgain))
	}
	var status *wire.StatusError
	isRefusal := errors.As(why, &status) && status.Status != http.StatusConflict &&
		(status.Status < http.StatusInternalServerError || status.Status == http.StatusInsufficientStorage)
	if !isRefusal {
		return fmt.Errorf("submit %s: %w", gang.ID, why)
	}
	return m.noteRefusal(ctx, gang, status.Message, time.Now().Add(refusedAgain))
}

func (m *mirror) noteRefusal(ctx context.Context, gang *Gang, reason string, again time.Time) error {
	if m.refused[gang.ID].reason != reason {
		m.log.Warn("a gang is not submitted", "gang", gang.ID.String(), "reason", reason)
		m.tell(gang, reason)
	}
	m.refused[gang.ID] = refusal{reason, again}
	return m.annotate(ctx, gang, reason)
}

// tell writes an event for each Job of a gang that is not submitted.
func (m *mirror) tell(gang *Gang, reason string) {
	if m.events == nil {
		return
	}
	for _, job := range gang.Jobs {
		m.events.Eventf(named(job), nil, corev1.EventTypeWarning, "Refused", "Submit", "%s", shortened(reason))
	}
}

func (m *mirror) annotate(ctx context.Context, gang *Gang, text string) error {
	for _, job := range gang.Jobs {
		if job.Refused == text {
			continue
		}
		if err := m.cluster.annotateJob(ctx, job, refusedAnnotation, text); err != nil {
			return fmt.Errorf("annotate Job %s: %w", job.Name, err)
		}
	}
	return nil
}
