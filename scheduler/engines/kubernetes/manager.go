package main

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
	"larder.io/larder/scheduler/engines/kubernetes/internal/kueue"
)

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	adders := []func(*runtime.Scheme) error{
		batchv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, v1alpha1.AddToScheme,
	}
	for _, add := range adders {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return scheme, nil
}

// newManager makes a manager for the cluster of the pod, or of $KUBECONFIG or --kubeconfig outside of one.
func newManager(options ctrl.Options) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	if options.Scheme, err = newScheme(); err != nil {
		return nil, err
	}
	strip := cache.TransformStripManagedFields()
	options.Cache.DefaultTransform = func(object any) (any, error) {
		stripped, err := strip(object)
		if err != nil {
			return nil, err
		}
		return kueue.StripWorkload(stripped)
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	return manager, nil
}
