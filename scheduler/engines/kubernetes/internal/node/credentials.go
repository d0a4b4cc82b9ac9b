package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"larder.io/larder/scheduler/engines/kubernetes/api/v1alpha1"
)

// How long a Secret that was read counts. Secrets are not watched, so that the node needs no right to list them.
const secretAge = 5 * time.Minute

var (
	requiredKeys = []string{"aws_access_key_id", "aws_secret_access_key"}
	optionalKeys = []string{"aws_session_token"}
)

// credentials writes the Secrets of Datasets as profiles of a shared credentials file, because larderd takes credentials
// from such a file only. larderd finds the file by AWS_SHARED_CREDENTIALS_FILE.
type credentials struct {
	secrets   client.Reader
	namespace string
	path      string
	read      map[string]readProfile // by dataset
	written   string
}

type readProfile struct {
	secret string
	text   string
	at     time.Time
}

// profileName returns the name of a Dataset's profile.
func profileName(dataset string) string {
	return "kubernetes-" + dataset
}

// update writes the profiles of the Datasets. It returns the Datasets whose Secrets cannot be used, with the reasons.
func (c *credentials) update(ctx context.Context, wanted []v1alpha1.Dataset, now time.Time) (map[string]error, error) {
	refused := make(map[string]error)
	used := make(map[string]bool)
	for i := range wanted {
		dataset := &wanted[i]
		if dataset.Spec.SecretRef == nil {
			continue
		}
		used[dataset.Name] = true
		before := c.read[dataset.Name]
		if before.secret == dataset.Spec.SecretRef.Name && now.Sub(before.at) < secretAge {
			continue
		}
		text, err := c.profile(ctx, dataset)
		if err != nil {
			// The former reading goes on to count: the API server may be away.
			refused[dataset.Name] = err
			continue
		}
		c.read[dataset.Name] = readProfile{secret: dataset.Spec.SecretRef.Name, text: text, at: now}
	}
	maps.DeleteFunc(c.read, func(name string, _ readProfile) bool { return !used[name] })
	var file strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.read)) {
		file.WriteString(c.read[name].text)
	}
	if file.String() == c.written || (len(used) > 0 && len(c.read) == 0) {
		return refused, nil
	}
	if err := replaceFile(c.path, []byte(file.String())); err != nil {
		return refused, err
	}
	c.written = file.String()
	return refused, nil
}

func (c *credentials) profile(ctx context.Context, dataset *v1alpha1.Dataset) (string, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: c.namespace, Name: dataset.Spec.SecretRef.Name}
	if err := c.secrets.Get(ctx, key, &secret); err != nil {
		return "", fmt.Errorf("read Secret %s: %w", key, err)
	}
	return profileText(dataset.Name, key.String(), secret.Data)
}

// profileText returns the profile of a dataset. Errors name no values.
func profileText(dataset, secret string, data map[string][]byte) (string, error) {
	text := "[" + profileName(dataset) + "]\n"
	for _, key := range slices.Concat(requiredKeys, optionalKeys) {
		value, is := data[key]
		if !is {
			if slices.Contains(requiredKeys, key) {
				return "", fmt.Errorf("Secret %s has no key %s", secret, key)
			}
			continue
		}
		trimmed := strings.TrimSpace(string(value))
		if trimmed == "" || strings.ContainsAny(trimmed, "\r\n") {
			return "", fmt.Errorf("Secret %s: %s must be one line", secret, key)
		}
		text += key + " = " + trimmed + "\n"
	}
	return text, nil
}
