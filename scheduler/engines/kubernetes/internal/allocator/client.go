// Package allocator calls the API of larder-allocator: docs/openapi/allocator.yaml.
package allocator

import (
	"context"
	"net/http"
	"net/url"

	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// Status is what this program needs of GET /v1/status.
type Status struct {
	PID                  int64   `json:"pid"`
	StartedUnixMs        int64   `json:"started_unix_ms"`
	Plan                 int64   `json:"plan"`
	RemoteBytesPerSecond float64 `json:"remote_bytes_per_second"`
}

// Job is a job that the allocator knows.
type Job struct {
	Name       string   `json:"name"`
	Registered bool     `json:"registered"`
	Running    bool     `json:"running"`
	Dataset    string   `json:"dataset"`
	User       *int64   `json:"user"`
	Nodes      []string `json:"nodes"`
	Ranks      int64    `json:"ranks"`
	// The job's reservation.
	CacheBytes              int64   `json:"cache_bytes"`
	BandwidthBytesPerSecond float64 `json:"bandwidth_floor_bytes_per_second"`
	// True if the reserved cache is filled as far as the nodes' quotas allow.
	Staged bool `json:"staged"`
}

// Registration is a job that a caller declares.
type Registration struct {
	Name    string `json:"name"`
	Dataset string `json:"dataset"`
	User    *int64 `json:"user,omitempty"`
}

// Tiers are bytes in memory and on disk.
type Tiers struct {
	MemoryBytes int64 `json:"memory_bytes"`
	DiskBytes   int64 `json:"disk_bytes"`
}

// DatasetNode is a node that has a dataset.
type DatasetNode struct {
	Name   string `json:"name"`
	Cached Tiers  `json:"cached"`
}

// Dataset is a dataset that some node has.
type Dataset struct {
	Name        string        `json:"name"`
	SizeBytes   int64         `json:"size_bytes"`
	QuotaBytes  int64         `json:"quota_bytes"`
	CachedBytes int64         `json:"cached_bytes"`
	PinnedBytes *int64        `json:"pinned_bytes"`
	Jobs        []string      `json:"jobs"`
	Nodes       []DatasetNode `json:"nodes"`
}

// Node is a node that has reported.
type Node struct {
	Name     string `json:"name"`
	Alive    bool   `json:"alive"`
	Capacity Tiers  `json:"capacity"`
}

// Reservation is what a job keeps from others.
type Reservation struct {
	CacheBytes              int64   `json:"cache_bytes"`
	BandwidthBytesPerSecond float64 `json:"bandwidth_floor_bytes_per_second"`
}

// Client calls one allocator.
type Client struct {
	wire *wire.Client
}

// New makes a client. It does not connect yet.
func New(options wire.Options) (*Client, error) {
	client, err := wire.New(options)
	if err != nil {
		return nil, err
	}
	return &Client{wire: client}, nil
}

// Status asks when the allocator started and what it plans with.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var status Status
	err := c.wire.Do(ctx, http.MethodGet, "/v1/status", nil, &status)
	return status, err
}

// Jobs lists all jobs, including registered ones that do not run.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	var answer struct {
		Jobs []Job `json:"jobs"`
	}
	err := c.wire.Do(ctx, http.MethodGet, "/v1/jobs", nil, &answer)
	return answer.Jobs, err
}

// Datasets lists the datasets of all nodes.
func (c *Client) Datasets(ctx context.Context) ([]Dataset, error) {
	var answer struct {
		Datasets []Dataset `json:"datasets"`
	}
	err := c.wire.Do(ctx, http.MethodGet, "/v1/datasets", nil, &answer)
	return answer.Datasets, err
}

// Nodes lists the nodes, including those that no longer report.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var answer struct {
		Nodes []Node `json:"nodes"`
	}
	err := c.wire.Do(ctx, http.MethodGet, "/v1/nodes", nil, &answer)
	return answer.Nodes, err
}

// Register declares a job. 404: no node has the dataset; 409: the job is registered already.
func (c *Client) Register(ctx context.Context, job Registration) error {
	return c.wire.Do(ctx, http.MethodPost, "/v1/jobs", job, nil)
}

// Reserve changes what a registered job reserves. A refused job keeps what it had. 404: it is not registered; 503: no
// node has its dataset now; 507: it is not free.
func (c *Client) Reserve(ctx context.Context, job string, reservation Reservation) error {
	return c.wire.Do(ctx, http.MethodPut, "/v1/jobs/"+url.PathEscape(job)+"/reservation", reservation, nil)
}

// Remove ends a registration. It succeeds if there is none.
func (c *Client) Remove(ctx context.Context, job string) error {
	err := c.wire.Do(ctx, http.MethodDelete, "/v1/jobs/"+url.PathEscape(job), nil, nil)
	if wire.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// Place tells that a registered job runs on a node with so many GPUs, or, for nil, that it has ended there.
func (c *Client) Place(ctx context.Context, job, node string, gpus *int64) error {
	body := struct {
		Node string `json:"node"`
		Runs bool   `json:"runs"`
		GPUs *int64 `json:"gpus,omitempty"`
	}{node, gpus != nil, gpus}
	return c.wire.Do(ctx, http.MethodPost, "/v1/jobs/"+url.PathEscape(job)+"/placement", body, nil)
}

// Pin fixes a dataset's quota over all nodes.
func (c *Client) Pin(ctx context.Context, dataset string, bytes int64) error {
	body := map[string]int64{"bytes": bytes}
	return c.wire.Do(ctx, http.MethodPut, "/v1/datasets/"+url.PathEscape(dataset)+"/pin", body, nil)
}

// Unpin lets the plan set a dataset's quota again. It succeeds if the quota is not pinned.
func (c *Client) Unpin(ctx context.Context, dataset string) error {
	err := c.wire.Do(ctx, http.MethodDelete, "/v1/datasets/"+url.PathEscape(dataset)+"/pin", nil, nil)
	if wire.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// SetRemote sets the remote bandwidth of all jobs together.
func (c *Client) SetRemote(ctx context.Context, bytesPerSecond int64) error {
	return c.wire.Do(ctx, http.MethodPut, "/v1/remote", map[string]int64{"bytes_per_second": bytesPerSecond}, nil)
}

// ResetRemote sets the remote bandwidth back to the value that the allocator was started with.
func (c *Client) ResetRemote(ctx context.Context) error {
	return c.wire.Do(ctx, http.MethodDelete, "/v1/remote", nil, nil)
}
