// Package daemon calls the admin API of the larderd of this node: docs/openapi/larderd.yaml.
package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

// Remote has the options of a URL.
type Remote struct {
	Endpoint string `json:"endpoint,omitempty"`
	Region   string `json:"region,omitempty"`
	Profile  string `json:"profile,omitempty"`
}

// NewDataset is a dataset to add.
type NewDataset struct {
	Name   string  `json:"name"`
	URL    string  `json:"url"`
	Format string  `json:"format,omitempty"`
	Mode   string  `json:"mode,omitempty"`
	Remote *Remote `json:"remote,omitempty"`
}

// Quota is a part of the node's cache.
type Quota struct {
	MemoryBytes int64 `json:"memory_bytes"`
	DiskBytes   int64 `json:"disk_bytes"`
}

// Dataset is a dataset of the node.
type Dataset struct {
	Name  string `json:"name"`
	URL   string `json:"url"`
	Quota Quota  `json:"quota"`
}

// Task is long work of the daemon.
type Task struct {
	State string `json:"state"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Client calls one daemon.
type Client struct {
	wire *wire.Client
}

// New makes a client of the daemon with this admin socket. It does not connect yet.
func New(socket string) (*Client, error) {
	client, err := wire.New(wire.Options{Endpoint: socket})
	if err != nil {
		return nil, err
	}
	return &Client{wire: client}, nil
}

// Datasets lists the datasets of the node by name.
func (c *Client) Datasets(ctx context.Context) (map[string]Dataset, error) {
	var answer struct {
		Datasets []Dataset `json:"datasets"`
	}
	if err := c.wire.Do(ctx, http.MethodGet, "/v1/datasets", nil, &answer); err != nil {
		return nil, err
	}
	byName := make(map[string]Dataset, len(answer.Datasets))
	for _, dataset := range answer.Datasets {
		byName[dataset.Name] = dataset
	}
	return byName, nil
}

// Add starts to index a dataset, and returns the number of the task.
func (c *Client) Add(ctx context.Context, dataset NewDataset) (int64, error) {
	return c.start(ctx, "/v1/datasets", dataset)
}

// Warm starts to fill the quota of a dataset, and returns the number of the task.
func (c *Client) Warm(ctx context.Context, name string) (int64, error) {
	return c.start(ctx, "/v1/datasets/"+url.PathEscape(name)+"/warm", nil)
}

func (c *Client) start(ctx context.Context, path string, body any) (int64, error) {
	var answer struct {
		Task int64 `json:"task"`
	}
	err := c.wire.Do(ctx, http.MethodPost, path, body, &answer)
	return answer.Task, err
}

// Remove removes a dataset with its cache. It succeeds if there is none.
func (c *Client) Remove(ctx context.Context, name string) error {
	err := c.wire.Do(ctx, http.MethodDelete, "/v1/datasets/"+url.PathEscape(name), nil, nil)
	if wire.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// Cancel ends a task soon. It succeeds if there is none.
func (c *Client) Cancel(ctx context.Context, id int64) error {
	err := c.wire.Do(ctx, http.MethodDelete, fmt.Sprintf("/v1/tasks/%d", id), nil, nil)
	if wire.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// Task tells how a task does. Nil: the daemon does not know it, because it has restarted.
func (c *Client) Task(ctx context.Context, id int64) (*Task, error) {
	var task Task
	err := c.wire.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/tasks/%d", id), nil, &task)
	if wire.IsStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &task, nil
}
