// Package main is Kueue for tests: its scheduler and its controllers, for Jobs of batch/v1 alone. Kueue's own command
// needs the certificates of its webhooks, and compiles the controllers of all other kinds of jobs. Without webhooks, a
// Job must be made suspended. The API server is that of $KUBECONFIG.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueueapi "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/cache/queue"
	schedulercache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/controller/jobs/job"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
	"sigs.k8s.io/kueue/pkg/util/kubeversion"
)

// noWebhooks takes webhooks and serves none of them.
type noWebhooks struct{}

func (noWebhooks) NeedLeaderElection() bool        { return false }
func (noWebhooks) Register(string, http.Handler)   {}
func (noWebhooks) Start(ctx context.Context) error { <-ctx.Done(); return nil }
func (noWebhooks) StartedChecker() healthz.Checker { return healthz.Ping }
func (noWebhooks) WebhookMux() *http.ServeMux      { return http.NewServeMux() }

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "kueue:", err)
		os.Exit(1)
	}
}

func newManager() (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueueapi.AddToScheme, configapi.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	config.QPS = -1 // No limit: tests are in a hurry.
	return ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, WebhookServer: noWebhooks{},
	})
}

func run(ctx context.Context) error {
	manager, err := newManager()
	if err != nil {
		return err
	}
	configuration := &configapi.Configuration{}
	manager.GetScheme().Default(configuration)
	preempted := expectations.New()
	cache := schedulercache.New(manager.GetClient())
	requeuer := queue.NewRequeuer()
	if err := manager.Add(requeuer); err != nil {
		return fmt.Errorf("set up the requeuer: %w", err)
	}
	queues := queue.NewManager(manager.GetClient(), cache, requeuer, queue.WithPreemptionExpectations(preempted))
	if err := indexer.Setup(ctx, manager.GetFieldIndexer()); err != nil {
		return fmt.Errorf("set up the indexes: %w", err)
	}
	if name, err := core.SetupControllers(manager, queues, cache, configuration, nil, preempted, nil); err != nil {
		return fmt.Errorf("set up the controller of %s: %w", name, err)
	}
	if err := setUpJobs(ctx, manager, queues, cache); err != nil {
		return err
	}
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	recorder := manager.GetEventRecorderFor(constants.AdmissionName)
	scheduling := scheduler.New(queues, cache, manager.GetClient(), recorder,
		scheduler.WithPreemptionExpectations(preempted))
	if err := manager.Add(scheduling); err != nil {
		return fmt.Errorf("set up the scheduler: %w", err)
	}
	return manager.Start(ctx)
}

func setUpJobs(ctx context.Context, manager ctrl.Manager, queues *queue.Manager, cache *schedulercache.Cache) error {
	asked, err := discovery.NewDiscoveryClientForConfig(manager.GetConfig())
	if err != nil {
		return fmt.Errorf("find the version of the API server: %w", err)
	}
	version := kubeversion.NewServerVersionFetcher(asked)
	if err := version.FetchServerVersion(); err != nil {
		return fmt.Errorf("ask for the version of the API server: %w", err)
	}
	options := []jobframework.Option{
		jobframework.WithEnabledFrameworks([]string{job.FrameworkName}),
		jobframework.WithKubeServerVersion(version),
		jobframework.WithManagerName(constants.KueueName),
		jobframework.WithManagedJobsNamespaceSelector(labels.Everything()),
		jobframework.WithQueues(queues),
		jobframework.WithCache(cache),
	}
	if err := jobframework.SetupIndexes(ctx, manager.GetFieldIndexer(), options...); err != nil {
		return fmt.Errorf("set up the indexes of Jobs: %w", err)
	}
	if err := jobframework.SetupControllers(ctx, manager, ctrl.Log, options...); err != nil {
		return fmt.Errorf("set up the controller of Jobs: %w", err)
	}
	return nil
}
