package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/daemon"
)

// A dataset that could not be added is tried again after this time.
const retryAfter = 30 * time.Second

// Daemon is what a Keeper needs of larderd's API.
type Daemon interface {
	Datasets(ctx context.Context) (map[string]daemon.Dataset, error)
	Add(ctx context.Context, dataset daemon.NewDataset) (int64, error)
	Warm(ctx context.Context, name string) (int64, error)
	Remove(ctx context.Context, name string) error
	Task(ctx context.Context, id int64) (*daemon.Task, error)
	Cancel(ctx context.Context, id int64) error
}

// Warn tells an administrator what is wrong with a Dataset on this node.
type Warn func(dataset *v1alpha1.Dataset, reason, message string)

// A Keeper adds, changes and removes the datasets of one larderd. It compares the whole, so that it need not know what
// has happened while it, larderd or the API server was away. One goroutine at a time.
type Keeper struct {
	client      client.Reader
	daemon      Daemon
	warn        Warn
	now         func() time.Time
	record      *record
	credentials credentials
	tasks       map[string]task
	retryAt     map[string]time.Time
}

// task is long work of larderd that this program has started.
type task struct {
	id    int64
	warms bool
}

// Options of a Keeper.
type Options struct {
	// Lists Datasets; may be a cache.
	Client client.Reader
	// Reads Secrets of Namespace; must be no cache, which would need the right to list them.
	Secrets   client.Reader
	Namespace string
	Daemon    Daemon
	Warn      Warn
	Now       func() time.Time
	// A file on the node's disk.
	RecordFile string
	// The shared credentials file of larderd.
	CredentialsFile string
}

// NewKeeper makes a Keeper that continues with the record on the disk.
func NewKeeper(options Options) (*Keeper, error) {
	loaded, err := loadRecord(options.RecordFile)
	if err != nil {
		return nil, err
	}
	return &Keeper{
		client: options.Client, daemon: options.Daemon, warn: options.Warn, now: options.Now, record: loaded,
		credentials: credentials{secrets: options.Secrets, namespace: options.Namespace, path: options.CredentialsFile,
			read: make(map[string]readProfile)},
		tasks: make(map[string]task), retryAt: make(map[string]time.Time),
	}, nil
}

// Compare starts what is missing. Datasets that fail do not stop the others.
func (k *Keeper) Compare(ctx context.Context) error {
	var list v1alpha1.DatasetList
	if err := k.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list the Datasets: %w", err)
	}
	wanted := slices.DeleteFunc(list.Items, func(dataset v1alpha1.Dataset) bool { return dataset.DeletionTimestamp != nil })
	local, err := k.daemon.Datasets(ctx)
	if err != nil {
		return fmt.Errorf("list the datasets of larderd: %w", err)
	}
	refused, err := k.credentials.update(ctx, wanted, k.now())
	if err != nil {
		return err
	}
	var failed []error
	names := make(map[string]bool, len(wanted))
	for i := range wanted {
		dataset := &wanted[i]
		names[dataset.Name] = true
		if reason := refused[dataset.Name]; reason != nil {
			if _, is := local[dataset.Name]; !is {
				k.warnLater(dataset, "SecretNotUsable", reason.Error())
				continue
			}
		}
		if err := k.keep(ctx, dataset, local); err != nil {
			failed = append(failed, fmt.Errorf("Dataset %s: %w", dataset.Name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.record.Datasets)) {
		if names[name] {
			continue
		}
		if err := k.remove(ctx, name); err != nil {
			failed = append(failed, fmt.Errorf("remove dataset %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func (k *Keeper) keep(ctx context.Context, dataset *v1alpha1.Dataset, local map[string]daemon.Dataset) error {
	wanted := newDataset(dataset)
	digest := digestOf(wanted)
	running, err := k.awaitTask(ctx, dataset)
	if err == nil && running && k.record.Datasets[dataset.Name].Digest != digest {
		err = k.daemon.Cancel(ctx, k.tasks[dataset.Name].id) // It may wait for a remote that does not exist.
	}
	if err != nil || running {
		return err
	}
	entry, ours := k.record.Datasets[dataset.Name]
	if present, is := local[dataset.Name]; is {
		if !ours && present.URL != dataset.Spec.URL {
			k.warnLater(dataset, "NameTaken", "larderd has a dataset of this name with another URL, "+present.URL+
				", which was not added by Kubernetes: remove it with `larder dataset rm`")
			return nil
		}
		if !ours {
			entry.Digest = digest
		}
		if entry.Digest == digest {
			return k.warm(ctx, dataset, entry)
		}
		if err := k.daemon.Remove(ctx, dataset.Name); err != nil {
			return fmt.Errorf("remove what has changed: %w", err)
		}
		delete(k.retryAt, dataset.Name)
	}
	if k.now().Before(k.retryAt[dataset.Name]) && entry.Digest == digest {
		return nil
	}
	// Recorded before it is added: a dataset that nobody knows would stay for ever.
	if err := k.record.set(dataset.Name, added{Digest: digest}); err != nil {
		return err
	}
	id, err := k.daemon.Add(ctx, wanted)
	if err != nil {
		k.warnLater(dataset, "NotAdded", err.Error())
		return fmt.Errorf("add: %w", err)
	}
	k.tasks[dataset.Name] = task{id: id}
	return nil
}

// awaitTask returns true while larderd works on the dataset.
func (k *Keeper) awaitTask(ctx context.Context, dataset *v1alpha1.Dataset) (bool, error) {
	started, is := k.tasks[dataset.Name]
	if !is {
		return false, nil
	}
	state, err := k.daemon.Task(ctx, started.id)
	if err != nil {
		return false, fmt.Errorf("ask for its task: %w", err)
	}
	if state != nil && state.State == "running" {
		return true, nil
	}
	delete(k.tasks, dataset.Name)
	switch {
	case state == nil: // larderd has restarted
	case state.State == "cancelled": // the Dataset has changed
	case state.State == "done" && started.warms:
		entry := k.record.Datasets[dataset.Name]
		entry.Warmed = true
		return false, k.record.set(dataset.Name, entry)
	case state.State != "done":
		message := "the task was " + state.State
		if state.Error != nil {
			message = state.Error.Message
		}
		k.warnLater(dataset, map[bool]string{false: "NotIndexed", true: "NotWarmed"}[started.warms], message)
	}
	return false, nil
}

func (k *Keeper) warm(ctx context.Context, dataset *v1alpha1.Dataset, entry added) error {
	if !dataset.Spec.Warm {
		entry.Warmed = false
	}
	if err := k.record.set(dataset.Name, entry); err != nil {
		return err
	}
	if !dataset.Spec.Warm || entry.Warmed || k.now().Before(k.retryAt[dataset.Name]) {
		return nil
	}
	id, err := k.daemon.Warm(ctx, dataset.Name)
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	k.tasks[dataset.Name] = task{id: id, warms: true}
	return nil
}

func (k *Keeper) remove(ctx context.Context, name string) error {
	// A dataset that is being indexed is not there yet. The next comparison removes what the task leaves.
	if started, is := k.tasks[name]; is && !started.warms {
		state, err := k.daemon.Task(ctx, started.id)
		if err != nil {
			return err
		}
		if state != nil && state.State == "running" {
			return k.daemon.Cancel(ctx, started.id)
		}
	}
	delete(k.tasks, name)
	delete(k.retryAt, name)
	if err := k.daemon.Remove(ctx, name); err != nil {
		return err
	}
	return k.record.forget(name)
}

func (k *Keeper) warnLater(dataset *v1alpha1.Dataset, reason, message string) {
	if k.now().Before(k.retryAt[dataset.Name]) {
		return
	}
	k.retryAt[dataset.Name] = k.now().Add(retryAfter)
	k.warn(dataset, reason, message)
}

func newDataset(dataset *v1alpha1.Dataset) daemon.NewDataset {
	spec := &dataset.Spec
	wanted := daemon.NewDataset{Name: dataset.Name, URL: spec.URL, Format: spec.Format, Mode: spec.Mode}
	remote := daemon.Remote{Endpoint: spec.Endpoint, Region: spec.Region}
	if spec.SecretRef != nil {
		remote.Profile = profileName(dataset.Name)
	}
	if remote != (daemon.Remote{}) {
		wanted.Remote = &remote
	}
	return wanted
}

// digestOf tells datasets apart that larderd must add anew. Quota and warming can change without that.
func digestOf(dataset daemon.NewDataset) string {
	text, err := json.Marshal(dataset)
	if err != nil {
		panic(err) // it has strings only
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}
