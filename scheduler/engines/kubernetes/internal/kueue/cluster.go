package kueue

import (
	"context"
	"fmt"
	"time"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

// Allocator is what this package needs of the allocator's API.
type Allocator interface {
	Status(ctx context.Context) (allocator.Status, error)
	Nodes(ctx context.Context) ([]allocator.Node, error)
	Datasets(ctx context.Context) ([]allocator.Dataset, error)
	Jobs(ctx context.Context) ([]allocator.Job, error)
	Register(ctx context.Context, job allocator.Registration) error
	Reserve(ctx context.Context, job string, reservation allocator.Reservation) error
	Remove(ctx context.Context, job string) error
}

// cluster is what the allocator knows at one time.
type cluster struct {
	started              time.Time // when the allocator started: nodes report one after the other
	remoteBytesPerSecond float64
	capacityBytes        int64 // of the caches of all nodes, including silent ones
	silent               []string
	datasets             map[string]*allocator.Dataset // that a node reports
}

func readCluster(ctx context.Context, api Allocator) (*cluster, error) {
	status, err := api.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the allocator for its status: %w", err)
	}
	nodes, err := api.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the allocator's nodes: %w", err)
	}
	datasets, err := api.Datasets(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the allocator's datasets: %w", err)
	}
	read := &cluster{
		started:              time.UnixMilli(status.StartedUnixMs),
		remoteBytesPerSecond: status.RemoteBytesPerSecond,
		datasets:             make(map[string]*allocator.Dataset, len(datasets)),
	}
	for i := range nodes {
		read.capacityBytes = sum(read.capacityBytes, sum(nodes[i].Capacity.MemoryBytes, nodes[i].Capacity.DiskBytes))
		if !nodes[i].Alive {
			read.silent = append(read.silent, nodes[i].Name)
		}
	}
	for i := range datasets {
		if len(datasets[i].Nodes) > 0 {
			read.datasets[datasets[i].Name] = &datasets[i]
		}
	}
	return read, nil
}

// tooMuch says why the nodes cannot give what is asked for, whatever other jobs have. All known nodes count:
// silent ones may come back, and those without the dataset may get it.
func (c *cluster) tooMuch(asked *request) error {
	if asked.CacheBytes > c.capacityBytes {
		return fmt.Errorf("%s is more than all nodes have: %d GiB of %d GiB", CacheResource, asked.CacheBytes>>30,
			c.capacityBytes>>30)
	}
	if asked.BandwidthBytesPerSecond > c.remoteBytesPerSecond {
		return fmt.Errorf("%s is more than the remote gives to all jobs: %.0f of %.0f", RemoteResource,
			asked.BandwidthBytesPerSecond/bytesPerSecondOfMbps, c.remoteBytesPerSecond/bytesPerSecondOfMbps)
	}
	return nil
}

// onlyNode returns the node that has a dataset, if no other node can have it.
func (c *cluster) onlyNode(dataset string) string {
	known := c.datasets[dataset]
	if known == nil || len(known.Nodes) != 1 || len(c.silent) > 0 {
		return ""
	}
	return known.Nodes[0].Name
}
