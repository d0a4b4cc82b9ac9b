package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/daemon"
)

// fakeDaemon indexes a dataset when the test says so.
type fakeDaemon struct {
	datasets map[string]daemon.Dataset
	tasks    []daemon.Task
	adding   []daemon.NewDataset // by number of the task
	warmed   int
	refuses  error
}

func (f *fakeDaemon) Datasets(context.Context) (map[string]daemon.Dataset, error) {
	return f.datasets, nil
}

func (f *fakeDaemon) Add(_ context.Context, dataset daemon.NewDataset) (int64, error) {
	if f.refuses != nil {
		return 0, f.refuses
	}
	return f.start(dataset), nil
}

func (f *fakeDaemon) Warm(context.Context, string) (int64, error) {
	f.warmed++
	return f.start(daemon.NewDataset{}), nil
}

func (f *fakeDaemon) start(dataset daemon.NewDataset) int64 {
	f.tasks = append(f.tasks, daemon.Task{State: "running"})
	f.adding = append(f.adding, dataset)
	return int64(len(f.tasks) - 1)
}

func (f *fakeDaemon) Remove(_ context.Context, name string) error {
	delete(f.datasets, name)
	return nil
}

func (f *fakeDaemon) Task(_ context.Context, id int64) (*daemon.Task, error) {
	if id >= int64(len(f.tasks)) {
		return nil, nil
	}
	return &f.tasks[id], nil
}

func (f *fakeDaemon) Cancel(_ context.Context, id int64) error {
	f.tasks[id].State = "cancelled"
	return nil
}

func (f *fakeDaemon) finish(state string) {
	for i := range f.tasks {
		if f.tasks[i].State != "running" {
			continue
		}
		f.tasks[i].State = state
		if added := f.adding[i]; state == "done" && added.Name != "" {
			f.datasets[added.Name] = daemon.Dataset{Name: added.Name, URL: added.URL}
		}
	}
}

// bench is a Keeper with what is around it.
type bench struct {
	t        *testing.T
	client   client.Client
	daemon   *fakeDaemon
	keeper   *Keeper
	now      time.Time
	warnings []string
	folder   string
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	made := &bench{
		t: t, client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
		daemon: &fakeDaemon{datasets: make(map[string]daemon.Dataset)}, now: time.Unix(1000, 0), folder: t.TempDir(),
	}
	made.restart()
	return made
}

// restart makes a Keeper that knows only what is on the disk.
func (b *bench) restart() {
	b.t.Helper()
	keeper, err := NewKeeper(Options{
		Client: b.client, Secrets: b.client, Namespace: "larder", Daemon: b.daemon,
		Warn: func(_ *v1alpha1.Dataset, reason, _ string) { b.warnings = append(b.warnings, reason) },
		Now:  func() time.Time { return b.now }, RecordFile: filepath.Join(b.folder, "record"),
		CredentialsFile: filepath.Join(b.folder, "credentials"),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.keeper = keeper
}

func (b *bench) compare() {
	b.t.Helper()
	if err := b.keeper.Compare(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) has(name string) bool {
	_, is := b.daemon.datasets[name]
	return is
}

func (b *bench) change(name string, change func(*v1alpha1.DatasetSpec)) {
	b.t.Helper()
	var dataset v1alpha1.Dataset
	if err := b.client.Get(context.Background(), client.ObjectKey{Name: name}, &dataset); err != nil {
		b.t.Fatal(err)
	}
	change(&dataset.Spec)
	if err := b.client.Update(context.Background(), &dataset); err != nil {
		b.t.Fatal(err)
	}
}

func images(changes ...func(*v1alpha1.DatasetSpec)) *v1alpha1.Dataset {
	dataset := &v1alpha1.Dataset{
		ObjectMeta: metav1.ObjectMeta{Name: "images"},
		Spec:       v1alpha1.DatasetSpec{URL: "file:///data/images", Mode: "0444"},
	}
	for _, change := range changes {
		change(&dataset.Spec)
	}
	return dataset
}

func TestDatasetIsAddedOnceAndRemoved(t *testing.T) {
	b := newBench(t, images())
	b.compare()
	b.compare()
	if len(b.daemon.adding) != 1 {
		t.Fatalf("it was added %d times while it was indexed, want once", len(b.daemon.adding))
	}
	b.daemon.finish("done")
	b.compare()
	if !b.has("images") || len(b.daemon.adding) != 1 {
		t.Fatalf("datasets are %v after %d additions", b.daemon.datasets, len(b.daemon.adding))
	}
	b.restart() // The Dataset is deleted while nobody looks.
	if err := b.client.Delete(context.Background(), images()); err != nil {
		t.Fatal(err)
	}
	b.compare()
	if b.has("images") {
		t.Error("the dataset is still there")
	}
}

func TestDatasetThatIsDeletedWhileItIsIndexedGoes(t *testing.T) {
	b := newBench(t, images())
	b.compare()
	if err := b.client.Delete(context.Background(), images()); err != nil {
		t.Fatal(err)
	}
	b.compare()
	if state := b.daemon.tasks[0].State; state != "cancelled" {
		t.Errorf("the task is %s, want cancelled", state)
	}
	b.compare()
	if len(b.keeper.record.Datasets) != 0 {
		t.Errorf("the record has %v, want nothing", b.keeper.record.Datasets)
	}
}

func TestURLThatChangesWhileItIsIndexedIsAddedNext(t *testing.T) {
	b := newBench(t, images())
	b.compare()
	b.change("images", func(spec *v1alpha1.DatasetSpec) { spec.URL = "file:///data/others" })
	b.compare()
	b.compare()
	b.daemon.finish("done")
	if got := b.daemon.datasets["images"].URL; got != "file:///data/others" || len(b.warnings) != 0 {
		t.Errorf("the URL is %q, warnings %v", got, b.warnings)
	}
}

func TestChangedURLIsAddedAnew(t *testing.T) {
	b := newBench(t, images())
	b.compare()
	b.daemon.finish("done")
	b.change("images", func(spec *v1alpha1.DatasetSpec) { spec.URL = "file:///data/others" })
	b.compare()
	b.daemon.finish("done")
	b.compare()
	if got := b.daemon.datasets["images"].URL; got != "file:///data/others" {
		t.Errorf("the URL is %q", got)
	}
}

func TestDatasetOfAnotherAdministratorStays(t *testing.T) {
	b := newBench(t, images())
	b.daemon.datasets["images"] = daemon.Dataset{Name: "images", URL: "file:///mine"}
	b.daemon.datasets["other"] = daemon.Dataset{Name: "other", URL: "file:///other"}
	b.compare()
	if got := strings.Join(b.warnings, " "); got != "NameTaken" {
		t.Errorf("warnings are %q, want NameTaken", got)
	}
	if err := b.client.Delete(context.Background(), images()); err != nil {
		t.Fatal(err)
	}
	b.compare()
	if !b.has("images") || !b.has("other") {
		t.Errorf("datasets are %v, want both", b.daemon.datasets)
	}
}

func TestFailureIsToldAndTriedAgainLater(t *testing.T) {
	b := newBench(t, images())
	b.compare()
	b.daemon.finish("failed")
	b.compare()
	b.compare()
	if len(b.daemon.adding) != 1 || len(b.warnings) != 1 {
		t.Fatalf("%d additions, warnings %v; want one of each", len(b.daemon.adding), b.warnings)
	}
	b.now = b.now.Add(retryAfter)
	b.compare()
	if len(b.daemon.adding) != 2 {
		t.Errorf("%d additions after the pause, want 2", len(b.daemon.adding))
	}
}

func TestRefusalIsAnError(t *testing.T) {
	b := newBench(t, images())
	b.daemon.refuses = errors.New("no such directory")
	if err := b.keeper.Compare(context.Background()); !errors.Is(err, b.daemon.refuses) {
		t.Errorf("the error is %v, want the refusal", err)
	}
}

func TestWarmsOnceAndAgainWhenAskedAgain(t *testing.T) {
	b := newBench(t, images(func(spec *v1alpha1.DatasetSpec) { spec.Warm = true }))
	for range 3 {
		b.compare()
		b.daemon.finish("done")
	}
	b.restart()
	b.compare()
	if b.daemon.warmed != 1 {
		t.Fatalf("warmed %d times, want once", b.daemon.warmed)
	}
	b.change("images", func(spec *v1alpha1.DatasetSpec) { spec.Warm = false })
	b.compare()
	b.change("images", func(spec *v1alpha1.DatasetSpec) { spec.Warm = true })
	b.compare()
	if b.daemon.warmed != 2 {
		t.Errorf("warmed %d times, want twice", b.daemon.warmed)
	}
}

func TestSecretBecomesAProfile(t *testing.T) {
	withSecret := func(spec *v1alpha1.DatasetSpec) { spec.SecretRef = &v1alpha1.SecretReference{Name: "keys"} }
	b := newBench(t, images(withSecret))
	b.compare()
	if len(b.daemon.adding) != 0 || strings.Join(b.warnings, " ") != "SecretNotUsable" {
		t.Fatalf("%d additions, warnings %v; want a warning only", len(b.daemon.adding), b.warnings)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "larder", Name: "keys"},
		Data:       map[string][]byte{"aws_access_key_id": []byte("id\n"), "aws_secret_access_key": []byte("key")},
	}
	if err := b.client.Create(context.Background(), secret); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(retryAfter)
	b.compare()
	if len(b.daemon.adding) != 1 || b.daemon.adding[0].Remote.Profile != "kubernetes-images" {
		t.Fatalf("additions are %+v", b.daemon.adding)
	}
	text, err := os.ReadFile(filepath.Join(b.folder, "credentials"))
	want := "[kubernetes-images]\naws_access_key_id = id\naws_secret_access_key = key\n"
	if err != nil || string(text) != want {
		t.Errorf("the file has %q (%v), want %q", text, err, want)
	}
}

func TestSecretCannotAddLines(t *testing.T) {
	_, err := profileText("images", "larder/keys", map[string][]byte{
		"aws_access_key_id": []byte("id\n[default]"), "aws_secret_access_key": []byte("key"),
	})
	if err == nil || strings.Contains(err.Error(), "[default]") {
		t.Errorf("the error is %v, want one without the value", err)
	}
}
