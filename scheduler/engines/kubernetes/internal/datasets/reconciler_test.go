package datasets

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

type fakeAllocator struct {
	rows    []allocator.Dataset
	pins    []int64
	unpins  int
	refuses error
}

func (f *fakeAllocator) Datasets(context.Context) ([]allocator.Dataset, error) { return f.rows, nil }

func (f *fakeAllocator) Pin(_ context.Context, _ string, bytes int64) error {
	if f.refuses != nil {
		return f.refuses
	}
	f.pins = append(f.pins, bytes)
	f.rows[0].PinnedBytes = &bytes
	return nil
}

func (f *fakeAllocator) Unpin(context.Context, string) error {
	f.unpins++
	f.rows[0].PinnedBytes = nil
	return nil
}

func newReconciler(t *testing.T, api *fakeAllocator, quota string) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	dataset := &v1alpha1.Dataset{ObjectMeta: metav1.ObjectMeta{Name: "images"}, Spec: v1alpha1.DatasetSpec{URL: "file:///i"}}
	if quota != "" {
		parsed := resource.MustParse(quota)
		dataset.Spec.Quota = &parsed
	}
	built := fake.NewClientBuilder().WithScheme(scheme).WithObjects(dataset).WithStatusSubresource(dataset).Build()
	return &Reconciler{Client: built, Allocator: api}
}

func read(t *testing.T, r *Reconciler) *v1alpha1.Dataset {
	t.Helper()
	var dataset v1alpha1.Dataset
	if err := r.Client.Get(context.Background(), client.ObjectKey{Name: "images"}, &dataset); err != nil {
		t.Fatal(err)
	}
	return &dataset
}

func compare(t *testing.T, r *Reconciler) {
	t.Helper()
	if err := r.Compare(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func row() allocator.Dataset {
	return allocator.Dataset{Name: "images", SizeBytes: 3 << 20, CachedBytes: 1536 << 10, Nodes: []allocator.DatasetNode{
		{Name: "n1", Cached: allocator.Tiers{MemoryBytes: 1 << 20, DiskBytes: 512 << 10}}, {Name: "n2"},
	}}
}

func TestStatusSaysWhatNodesHave(t *testing.T) {
	api := &fakeAllocator{}
	r := newReconciler(t, api, "")
	compare(t, r)
	if meta.IsStatusConditionTrue(read(t, r).Status.Conditions, v1alpha1.DatasetReady) {
		t.Error("the Dataset is ready without a node")
	}
	api.rows = []allocator.Dataset{row()}
	compare(t, r)
	status := read(t, r).Status
	if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.DatasetReady) {
		t.Error("the Dataset is not ready")
	}
	if status.Nodes != 2 || status.Size != "3.0 MiB" || status.Cached != "1.5 MiB" {
		t.Errorf("the status is %+v", status)
	}
	if len(status.CachedBytesByNode) != 1 || status.CachedBytesByNode["n1"] != 1536<<10 {
		t.Errorf("cached bytes by node are %v", status.CachedBytesByNode)
	}
}

func TestUnchangedStatusIsNotWritten(t *testing.T) {
	r := newReconciler(t, &fakeAllocator{rows: []allocator.Dataset{row()}}, "")
	compare(t, r)
	before := read(t, r).ResourceVersion
	compare(t, r)
	if after := read(t, r).ResourceVersion; after != before {
		t.Errorf("the version went from %s to %s", before, after)
	}
}

func TestQuotaIsPinnedOnceAndReleased(t *testing.T) {
	api := &fakeAllocator{rows: []allocator.Dataset{row()}}
	r := newReconciler(t, api, "2Mi")
	compare(t, r)
	compare(t, r)
	if len(api.pins) != 1 || api.pins[0] != 2<<20 {
		t.Fatalf("pins are %v, want one of 2 MiB", api.pins)
	}
	dataset := read(t, r)
	dataset.Spec.Quota = nil
	if err := r.Client.Update(context.Background(), dataset); err != nil {
		t.Fatal(err)
	}
	compare(t, r)
	compare(t, r)
	if api.unpins != 1 {
		t.Errorf("released %d times, want once", api.unpins)
	}
}

func TestPinOfAnOperatorStays(t *testing.T) {
	bytes := int64(7)
	api := &fakeAllocator{rows: []allocator.Dataset{row()}}
	api.rows[0].PinnedBytes = &bytes
	compare(t, newReconciler(t, api, ""))
	if api.unpins != 0 {
		t.Error("the pin was released")
	}
}

func TestRefusedQuotaIsACondition(t *testing.T) {
	api := &fakeAllocator{rows: []allocator.Dataset{row()}, refuses: errors.New("no room")}
	r := newReconciler(t, api, "2Mi")
	if err := r.Compare(context.Background()); !errors.Is(err, api.refuses) {
		t.Errorf("the error is %v, want the refusal", err)
	}
	found := meta.FindStatusCondition(read(t, r).Status.Conditions, v1alpha1.DatasetPinned)
	if found == nil || found.Status != metav1.ConditionFalse || found.Message != "no room" {
		t.Errorf("the condition is %+v", found)
	}
}

func TestFormatBytes(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 100 << 10: "100 KiB", 1536 << 20: "1.5 GiB",
	} {
		if got := formatBytes(bytes); got != want {
			t.Errorf("formatBytes(%d) = %q, want %q", bytes, got, want)
		}
	}
}
