package kueue

import (
	"context"
	"fmt"
	"slices"

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
	remoteBytesPerSecond float64
	capacity             map[string]int64    // of the cache, by node
	alive                map[string]bool     // by node
	nodes                map[string][]string // by dataset
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
		remoteBytesPerSecond: status.RemoteBytesPerSecond,
		capacity:             make(map[string]int64, len(nodes)),
		alive:                make(map[string]bool, len(nodes)),
		nodes:                make(map[string][]string, len(datasets)),
	}
	for i := range nodes {
		read.capacity[nodes[i].Name] = nodes[i].Capacity.MemoryBytes + nodes[i].Capacity.DiskBytes
		read.alive[nodes[i].Name] = nodes[i].Alive
	}
	for i := range datasets {
		for _, node := range datasets[i].Nodes {
			read.nodes[datasets[i].Name] = append(read.nodes[datasets[i].Name], node.Name)
		}
	}
	return read, nil
}

// mayEverHave says why the nodes cannot give what is asked for, whatever other jobs have. Nodes that do not report now
// count, because they may come back.
func (c *cluster) mayEverHave(asked *request) error {
	var capacity int64
	for _, node := range c.nodes[asked.dataset] {
		capacity += c.capacity[node]
	}
	if asked.CacheBytes > capacity {
		return fmt.Errorf("%s is more than the nodes with dataset %q have: %d GiB of %d GiB", CacheResource, asked.dataset,
			asked.CacheBytes>>30, capacity>>30)
	}
	if asked.BandwidthBytesPerSecond > c.remoteBytesPerSecond {
		return fmt.Errorf("%s is more than the remote gives to all jobs: %.0f of %.0f", RemoteResource,
			asked.BandwidthBytesPerSecond/bytesPerSecondOfMbps, c.remoteBytesPerSecond/bytesPerSecondOfMbps)
	}
	return nil
}

// onlyNode returns the node that has a dataset, if it is the only one of those that report.
func (c *cluster) onlyNode(dataset string) string {
	having := slices.DeleteFunc(slices.Clone(c.nodes[dataset]), func(node string) bool { return !c.alive[node] })
	if len(having) != 1 {
		return ""
	}
	return having[0]
}
