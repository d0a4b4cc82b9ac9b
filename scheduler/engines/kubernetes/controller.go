package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
	"larder.io/larder/scheduler/engines/kubernetes/internal/datasets"
	"larder.io/larder/scheduler/engines/kubernetes/internal/follow"
	"larder.io/larder/scheduler/engines/kubernetes/internal/kueue"
	"larder.io/larder/scheduler/engines/kubernetes/internal/place"
	"larder.io/larder/scheduler/engines/kubernetes/internal/remote"
	"larder.io/larder/scheduler/engines/kubernetes/internal/wire"
)

const leaderElectionID = "larder-kubernetes"

func runController(ctx context.Context, flags *flag.FlagSet, arguments []string) error {
	var options wire.Options
	flags.StringVar(&options.Endpoint, "allocator", "", "where the allocator is: a socket or a URL, or several with commas between them")
	flags.StringVar(&options.TokenFile, "allocator-token-file", "", "file with an operator's token")
	flags.StringVar(&options.CAFile, "allocator-ca", "", "PEM file of the authorities of the allocator's certificate")
	gpuResources := flags.String("gpu-resources", "nvidia.com/gpu", "resources that are GPUs, separated by commas")
	interval := flags.Duration("interval", 5*time.Second, "how often all is compared when nothing happens")
	places := flags.Bool("place", false, "let the allocator decide where gated pods run; it needs scheduler.engine = agent")
	agent := flags.String("agent", "kubernetes", "with --place: the name of all controllers that stand by for each other")
	admits := flags.Bool("kueue", false, "answer Kueue's AdmissionChecks of the controller "+kueue.ControllerName)
	patience := flags.Duration("kueue-patience", time.Minute,
		"after which time a Workload that cannot have its cache or bandwidth gives its quota to others")
	nodeSelector := flags.String("node-selector", "", "with --kueue: labels of the nodes of larderd: NAME=VALUE,...")
	elect := flags.Bool("leader-election", true, "let one of several controllers act")
	namespace := flags.String("leader-election-namespace", "", "namespace of the lease; default: that of the pod")
	leaseDuration := flags.Duration("lease-duration", 15*time.Second, "after which time a leader that is silent is replaced")
	metrics := flags.String("metrics-listen", "0", "HOST:PORT of /metrics; 0: none")
	health := flags.String("health-listen", "0", "HOST:PORT of /healthz and /readyz; 0: none")
	if err := parse(flags, arguments); err != nil {
		return err
	}
	if err := require("allocator", options.Endpoint); err != nil {
		return err
	}
	api, err := allocator.New(options)
	if err != nil {
		return fmt.Errorf("--allocator: %w", err)
	}
	followed, err := labels.NewRequirement(follow.DatasetLabel, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select pods: %w", err)
	}
	resources := strings.Split(*gpuResources, ",")
	renew, retry := *leaseDuration*2/3, *leaseDuration/6
	// Pods that do not matter are not kept in memory.
	pods := cache.ByObject{Label: labels.NewSelector().Add(*followed)}
	if *places {
		pods = cache.ByObject{Transform: place.StripPods(resources)}
	}
	manager, err := newManager(ctrl.Options{
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: pods}},
		// Kueue's objects are read without its types.
		Client:                        client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Metrics:                       server.Options{BindAddress: *metrics},
		HealthProbeBindAddress:        *health,
		LeaderElection:                *elect,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       *namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 leaseDuration,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
	if err != nil {
		return err
	}
	follower := follow.NewFollower(api)
	isPlaced := func(string) bool { return false }
	if *places {
		options := place.Options{
			Name: *agent, GPUResources: resources, Interval: *interval, Events: manager.GetEventRecorder("larder-kubernetes"),
		}
		if *elect {
			if options.Leader, err = leaderOf(manager.GetAPIReader(), *namespace); err != nil {
				return err
			}
		}
		placing := place.NewAgent(api, manager.GetClient(), manager.GetCache(), options)
		if err := manager.Add(placing); err != nil {
			return fmt.Errorf("set up the agent: %w", err)
		}
		isPlaced = placing.Places
	}
	follower.IsPlaced = isPlaced
	if *admits {
		selector, err := labels.ConvertSelectorToLabelsMap(*nodeSelector)
		if err != nil {
			return fmt.Errorf("--node-selector: %w", err)
		}
		admitting := &kueue.Reconciler{
			Client: manager.GetClient(), Allocator: api, NodeSelector: selector, IsPlaced: isPlaced,
			Patience: *patience, Events: manager.GetEventRecorder("larder-kubernetes"),
		}
		if err := admitting.SetUp(manager, *interval); err != nil {
			return fmt.Errorf("set up the AdmissionChecks: %w", err)
		}
		follower.Keeps = admitting.Keeps
	}
	if err := follow.SetUp(manager, follower, resources, *interval); err != nil {
		return fmt.Errorf("set up the jobs: %w", err)
	}
	if err := (&datasets.Reconciler{Client: manager.GetClient(), Allocator: api}).SetUp(manager, *interval); err != nil {
		return fmt.Errorf("set up the Datasets: %w", err)
	}
	if err := (&remote.Reconciler{Client: manager.GetClient(), Allocator: api}).SetUp(manager, *interval); err != nil {
		return fmt.Errorf("set up the RemoteBudgets: %w", err)
	}
	if err := addHealthChecks(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// podNamespace is the file that has the namespace of the program's pod.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaderOf returns a function that asks the API server who holds the lease. The namespace "" stands for the pod's.
func leaderOf(api client.Reader, namespace string) (func(context.Context) (string, error), error) {
	if namespace == "" {
		file, err := os.ReadFile(podNamespace)
		if err != nil {
			return nil, fmt.Errorf("--leader-election-namespace is missing, and this is no pod: %w", err)
		}
		namespace = strings.TrimSpace(string(file))
	}
	return func(ctx context.Context) (string, error) {
		var lease coordinationv1.Lease
		if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: leaderElectionID}, &lease); err != nil {
			return "", fmt.Errorf("read the lease: %w", err)
		}
		if lease.Spec.HolderIdentity == nil {
			return "", nil
		}
		return *lease.Spec.HolderIdentity, nil
	}, nil
}

func addHealthChecks(manager ctrl.Manager) error {
	alive := func(*http.Request) error { return nil }
	if err := manager.AddHealthzCheck("alive", alive); err != nil {
		return fmt.Errorf("add the health check: %w", err)
	}
	if err := manager.AddReadyzCheck("alive", alive); err != nil {
		return fmt.Errorf("add the readiness check: %w", err)
	}
	return nil
}
