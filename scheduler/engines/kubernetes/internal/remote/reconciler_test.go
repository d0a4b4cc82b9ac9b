package remote

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

const configured = 7

type fakeAllocator struct {
	rate  float64
	sets  int
	fails error
}

func (f *fakeAllocator) Status(context.Context) (allocator.Status, error) {
	return allocator.Status{RemoteBytesPerSecond: f.rate}, f.fails
}

func (f *fakeAllocator) SetRemote(_ context.Context, rate int64) error {
	f.sets++
	f.rate = float64(rate)
	return f.fails
}

func (f *fakeAllocator) ResetRemote(context.Context) error {
	if f.fails == nil {
		f.rate = configured
	}
	return f.fails
}

func budget(name string, second int64, rate string) *v1alpha1.RemoteBudget {
	return &v1alpha1.RemoteBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
		Spec:       v1alpha1.RemoteBudgetSpec{BytesPerSecond: resource.MustParse(rate)},
	}
}

func newReconciler(t *testing.T, api *fakeAllocator, budgets ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	built := fake.NewClientBuilder().WithScheme(scheme).WithObjects(budgets...).WithStatusSubresource(budgets...).Build()
	return &Reconciler{Client: built, Allocator: api}
}

func compare(t *testing.T, r *Reconciler) {
	t.Helper()
	if err := r.Compare(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func isApplied(t *testing.T, r *Reconciler, name string) bool {
	t.Helper()
	var read v1alpha1.RemoteBudget
	if err := r.Client.Get(context.Background(), client.ObjectKey{Name: name}, &read); err != nil {
		t.Fatal(err)
	}
	return meta.IsStatusConditionTrue(read.Status.Conditions, v1alpha1.BudgetApplied)
}

func remove(t *testing.T, r *Reconciler, name string) {
	t.Helper()
	object := &v1alpha1.RemoteBudget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := r.Client.Delete(context.Background(), object); err != nil {
		t.Fatal(err)
	}
}

func TestOldestBudgetIsAppliedAndTheLastOneReset(t *testing.T) {
	api := &fakeAllocator{rate: configured}
	r := newReconciler(t, api, budget("a", 2, "300"), budget("b", 1, "2k"))
	compare(t, r)
	compare(t, r)
	if api.rate != 2000 || api.sets != 1 {
		t.Fatalf("the rate is %v after %d requests, want 2000 after one", api.rate, api.sets)
	}
	if isApplied(t, r, "a") || !isApplied(t, r, "b") {
		t.Error("the conditions do not say that b is applied")
	}
	remove(t, r, "b")
	compare(t, r)
	if api.rate != 300 || !isApplied(t, r, "a") {
		t.Errorf("the rate is %v, want that of the next budget", api.rate)
	}
	remove(t, r, "a")
	compare(t, r)
	if api.rate != configured {
		t.Errorf("the rate is %v, want the configured one", api.rate)
	}
}

func TestBudgetStaysUntilTheAllocatorIsReset(t *testing.T) {
	api := &fakeAllocator{rate: configured}
	r := newReconciler(t, api, budget("a", 1, "300"))
	compare(t, r)
	remove(t, r, "a")
	api.fails = errors.New("no answer")
	if err := r.Compare(context.Background()); !errors.Is(err, api.fails) {
		t.Fatalf("the error is %v, want that of the allocator", err)
	}
	isApplied(t, r, "a") // it is still there
	api.fails = nil
	compare(t, r)
	err := r.Client.Get(context.Background(), client.ObjectKey{Name: "a"}, &v1alpha1.RemoteBudget{})
	if !apierrors.IsNotFound(err) || api.rate != configured {
		t.Errorf("reading it gives %v, the rate is %v", err, api.rate)
	}
}

func TestRefusedBudgetIsACondition(t *testing.T) {
	api := &fakeAllocator{fails: errors.New("no answer")}
	r := newReconciler(t, api, budget("a", 1, "300"))
	if err := r.Compare(context.Background()); !errors.Is(err, api.fails) {
		t.Errorf("the error is %v, want that of the allocator", err)
	}
	if isApplied(t, r, "a") {
		t.Error("the condition says that the budget is applied")
	}
}
