package allocator

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// EngineEvent is an event of an attempt or of a node: docs/openapi/engine.yaml.
type EngineEvent struct {
	Kind string `json:"kind"`
	Node string `json:"node,omitempty"`
	// GPUs are those of a node. Nil: they are not told.
	GPUs        *int64            `json:"gpus,omitempty"`
	GPUType     string            `json:"gpu_type,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Queue       string            `json:"queue,omitempty"`
	Job         int64             `json:"job,omitempty"`
	Attempt     int64             `json:"attempt,omitempty"`
	ExitCode    *int64            `json:"exit_code,omitempty"`
	WasStopping bool              `json:"was_stopping,omitempty"`
	StoppedBy   string            `json:"stopped_by,omitempty"`
	ForGood     bool              `json:"for_good,omitempty"`
	// Resize is the number of a resize: see docs/engines.md.
	Resize  int64   `json:"resize,omitempty"`
	Message string  `json:"message,omitempty"`
	AtUnixS float64 `json:"at_unix_s,omitempty"`
}

// EngineTask is the part of an attempt on one node.
type EngineTask struct {
	Node string  `json:"node"`
	GPUs []int64 `json:"gpus"`
}

// EngineAction starts, stops or resizes an attempt.
type EngineAction struct {
	Number     int64             `json:"number"`
	Do         string            `json:"do"`
	Queue      string            `json:"queue"`
	Job        int64             `json:"job"`
	Attempt    int64             `json:"attempt"`
	Resize     int64             `json:"resize"`
	Parameters map[string]string `json:"parameters"`
	Tasks      []EngineTask      `json:"tasks"`
}

// EngineState is all that an agent has.
type EngineState struct {
	Agent   string `json:"agent"`
	Resizes bool   `json:"resizes"`
	// The commands by which people drain a node and take it back; {node} stands for its name.
	DrainCommand   string        `json:"drain_command,omitempty"`
	UndrainCommand string        `json:"undrain_command,omitempty"`
	Nodes          []EngineEvent `json:"nodes"`
	Attempts       []EngineEvent `json:"attempts"`
}

// Submission is a job for the allocator's queue.
type Submission struct {
	Name             string            `json:"name"`
	Command          []string          `json:"command"`
	Directory        string            `json:"directory"`
	Tenant           string            `json:"tenant,omitempty"`
	GPUs             int64             `json:"gpus"`
	GPUsMin          int64             `json:"gpus_min,omitempty"`
	GPUsMax          int64             `json:"gpus_max,omitempty"`
	Elastic          bool              `json:"elastic,omitempty"`
	Pods             []int64           `json:"pods"`
	Dataset          string            `json:"dataset,omitempty"`
	ReaderUID        *int64            `json:"reader_uid,omitempty"`
	Epochs           float64           `json:"epochs,omitempty"`
	IdealRate        float64           `json:"ideal_bytes_per_second,omitempty"`
	GraceS           float64           `json:"grace_s"`
	Preemptible      bool              `json:"preemptible"`
	Opportunistic    bool              `json:"opportunistic,omitempty"`
	EngineParameters map[string]string `json:"engine_parameters"`
}

// QueueJob is a job of the allocator's queue.
type QueueJob struct {
	ID               int64             `json:"id"`
	Name             string            `json:"name"`
	State            string            `json:"state"`
	EndReason        string            `json:"end_reason"`
	EngineParameters map[string]string `json:"engine_parameters"`
}

// HasEnded tells whether the job will not run again.
func (j QueueJob) HasEnded() bool {
	return j.State == "succeeded" || j.State == "failed" || j.State == "cancelled"
}

// Attach begins a session of the engine's protocol and returns its name.
func (c *Client) Attach(ctx context.Context, state EngineState) (string, error) {
	var answer struct {
		Session string `json:"session"`
	}
	err := c.wire.Do(ctx, http.MethodPost, "/v1/engine/attach", state, &answer)
	return answer.Session, err
}

// A request to one of several allocators waits so long for actions, because that one may hang.
const waitAmongSeveralS = 2

// Actions waits for the actions that follow number after, for waitS seconds at most. 409: the session is over.
func (c *Client) Actions(ctx context.Context, session string, after int64, waitS int) ([]EngineAction, error) {
	if c.wire.HasSeveral() {
		waitS = min(waitS, waitAmongSeveralS)
	}
	query := url.Values{"session": {session}, "after": {strconv.FormatInt(after, 10)}, "wait_s": {strconv.Itoa(waitS)}}
	var answer struct {
		Actions []EngineAction `json:"actions"`
	}
	err := c.wire.Do(ctx, http.MethodGet, "/v1/engine/actions?"+query.Encode(), nil, &answer)
	return answer.Actions, err
}

// Report reports events. It may be repeated with the same number. 409: the session is over.
func (c *Client) Report(ctx context.Context, session string, number int64, events []EngineEvent) error {
	body := struct {
		Session string        `json:"session"`
		Number  int64         `json:"number"`
		Events  []EngineEvent `json:"events"`
	}{session, number, events}
	return c.wire.Do(ctx, http.MethodPost, "/v1/engine/events", body, nil)
}

// Submit submits jobs to the queue, all or none, and returns their numbers.
func (c *Client) Submit(ctx context.Context, jobs []Submission) ([]int64, error) {
	var answer struct {
		Jobs []struct {
			ID int64 `json:"id"`
		} `json:"jobs"`
	}
	if err := c.wire.Do(ctx, http.MethodPost, "/v1/queue", map[string][]Submission{"jobs": jobs}, &answer); err != nil {
		return nil, err
	}
	if len(answer.Jobs) != len(jobs) {
		return nil, fmt.Errorf("POST /v1/queue: %d jobs were submitted, and the answer has %d", len(jobs), len(answer.Jobs))
	}
	ids := make([]int64, len(jobs))
	for i, job := range answer.Jobs {
		ids[i] = job.ID
	}
	return ids, nil
}

// Queue is the allocator's queue: its identity, and the submitted jobs that have not ended.
type Queue struct {
	ID   string     `json:"queue"`
	Jobs []QueueJob `json:"jobs"`
}

// Queue lists the submitted jobs that have not ended.
func (c *Client) Queue(ctx context.Context) (Queue, error) {
	var answer Queue
	err := c.wire.Do(ctx, http.MethodGet, "/v1/queue", nil, &answer)
	return answer, err
}

// QueueJob returns the last job of a name, also one that has ended. 404: there is none.
func (c *Client) QueueJob(ctx context.Context, name string) (QueueJob, error) {
	var job QueueJob
	err := c.wire.Do(ctx, http.MethodGet, "/v1/queue/"+url.PathEscape(name), nil, &job)
	return job, err
}

// Cancel cancels a submitted job. 404: there is none; 409: it has ended.
func (c *Client) Cancel(ctx context.Context, id int64) error {
	return c.wire.Do(ctx, http.MethodDelete, "/v1/queue/"+strconv.FormatInt(id, 10), nil, nil)
}
