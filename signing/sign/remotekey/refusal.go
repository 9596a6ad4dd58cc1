package remotekey

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	vault "github.com/hashicorp/vault/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// answered gives the error of a service one of our names, so that what will be refused again is not repeated: temporary is what
// did not reach the service, or what it calls its own trouble. An error of unknown kind gets no name.
func answered(err error) error {
	kind := error(nil)
	if code := statusOf(err); code != 0 {
		kind = kindOf(code)
	} else if unreached(err) {
		kind = fault.ErrTemporary
	}
	switch {
	case errors.Is(err, context.Canceled), kind == nil:
		return err
	case errors.Is(kind, fault.ErrUnauthenticated), errors.Is(kind, fault.ErrDenied):
		return fault.WithHint(fmt.Errorf("%w: %w", kind, err), "check who you are to the service, and that you may read the key and sign with it")
	}
	return fmt.Errorf("%w: %w", kind, err)
}

func kindOf(code int) error {
	switch {
	case code == http.StatusUnauthorized:
		return fault.ErrUnauthenticated
	case code == http.StatusForbidden:
		return fault.ErrDenied
	case code == http.StatusNotFound:
		return fault.ErrNotFound
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return fault.ErrTemporary
	case code >= 400:
		return fault.ErrInvalid
	}
	return nil
}

// unreached reports whether there was no answer.
func unreached(err error) bool {
	var network net.Error
	var request *url.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) || errors.As(err, &request)
}

// statusOf is what a service answered, as HTTP says it; 0: it does not tell.
func statusOf(err error) int {
	var (
		ofVault *vault.ResponseError
		ofAzure *azcore.ResponseError
		ofAWS   interface{ HTTPStatusCode() int }
		named   interface{ ErrorCode() string } // AWS says most of it with 400 and a name
		login   interface{ NonRetriable() }     // Azure's, of who does not get a token
		remote  interface{ GRPCStatus() *status.Status }
	)
	switch {
	case errors.As(err, &ofVault):
		return ofVault.StatusCode
	case errors.As(err, &ofAzure):
		return ofAzure.StatusCode
	case errors.As(err, &named):
		if code := statusNamed(named.ErrorCode()); code != 0 {
			return code
		}
	case errors.As(err, &login):
		return http.StatusUnauthorized
	case errors.As(err, &remote):
		return statusOfRPC(remote.GRPCStatus().Code())
	}
	if errors.As(err, &ofAWS) {
		return ofAWS.HTTPStatusCode()
	}
	return 0
}

// statusNamed is what the names of AWS mean that come with another status; 0: its status tells.
func statusNamed(name string) int {
	for code, names := range map[int][]string{
		http.StatusUnauthorized:    {"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId", "IncompleteSignature", "MissingAuthenticationToken"},
		http.StatusForbidden:       {"AccessDeniedException", "NotAuthorized", "OptInRequired"},
		http.StatusNotFound:        {"NotFoundException"},
		http.StatusTooManyRequests: {"ThrottlingException", "Throttling", "LimitExceededException", "RequestLimitExceeded"},
	} {
		if slices.Contains(names, name) {
			return code
		}
	}
	return 0
}

func statusOfRPC(code codes.Code) int {
	switch code {
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.AlreadyExists:
		return http.StatusBadRequest
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal:
		return http.StatusServiceUnavailable
	}
	return 0
}
