package tokens

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"larder.io/larder/scheduler/engines/kubernetes/internal/loop"
)

// Writer keeps the allocator's file of tokens as the nodes of the cluster are, and makes the allocator read it again.
type Writer struct {
	Client client.Reader
	// The file with the lines that are no node's, as a Secret has it.
	FixedFile string
	KeyFile   string
	// The file that is written.
	Path string
	// Makes the allocator read the file again.
	Reload func() error
	// True once the allocator has been told of the file as it is.
	told bool
}

// SetUp registers the writer with a manager. It runs every interval, because the Secrets may have changed.
func (w *Writer) SetUp(manager ctrl.Manager, interval time.Duration) error {
	// Nodes change every few seconds, their names never.
	comesOrGoes := predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
	watched := loop.Watched{Object: nodeMetadata(), Which: comesOrGoes}
	return loop.SetUp(manager, "tokens", interval, w.Compare, watched)
}

// Compare writes the file if it differs.
func (w *Writer) Compare(ctx context.Context) error {
	key, err := ReadKey(w.KeyFile)
	if err != nil {
		return err
	}
	fixed, err := os.ReadFile(w.FixedFile)
	if err != nil {
		return fmt.Errorf("read the fixed tokens: %w", err)
	}
	list := &v1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := w.Client.List(ctx, list); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	text := File(string(fixed), key, names)
	before, err := os.ReadFile(w.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the file of tokens: %w", err)
	}
	if string(before) != text {
		w.told = false
		if err := replace(w.Path, text); err != nil {
			return err
		}
	}
	if w.told {
		return nil
	}
	if err := w.Reload(); err != nil {
		return fmt.Errorf("make the allocator read its tokens: %w", err)
	}
	w.told = true
	return nil
}

func nodeMetadata() client.Object {
	node := &v1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return node
}

func replace(path, text string) error {
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the file of tokens: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write the file of tokens: %w", err)
	}
	return nil
}

// SignalProgram sends SIGHUP to the processes of a program that this process sees: in a pod that shares its processes,
// those of the other containers. It succeeds if there is none: a program that starts later reads the file anyway.
func SignalProgram(name string) error {
	stats, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(text)) != name[:min(len(name), commBytesMax)] {
			continue // A process that has ended, or another one.
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return fmt.Errorf("process %s: %w", path, err)
		}
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// The kernel keeps so many bytes of a program's name.
const commBytesMax = 15
