#include "scheduler/simulator/workload.h"

namespace larder::scheduler {

// Dataset sizes, and ResNet-50's 114 MB/s on a V100, are from SiloD (EuroSys '23). Rates of unet3d, cosmoflow and
// resnet50 on an H100 are from MLPerf Storage. The other rates are ours, chosen for the shape of the mix.
std::string_view default_workload() {
    return R"(reference = "v100"

[[dataset]]
name = "imagenet-1k"
size = "143GB"

[[dataset]]
name = "openimages"
size = "660GB"

[[dataset]]
name = "imagenet-22k"
size = "1.36TB"

[[dataset]]
name = "youtube-8m"
size = "1.46TB"

[[dataset]]
name = "text"
size = "20.9TB"

[[model]]
name = "resnet50"
dataset = "imagenet-1k"
weight = 3
rate = {k80 = "16MB/s", p100 = "62MB/s", v100 = "114MB/s", a100 = "180MB/s", h100 = "205MB/s"}
restart = "30s"
checkpoint = "200MB"
packed = 0.55
gpu_memory = 0.4

[[model]]
name = "resnet50-openimages"
dataset = "openimages"
weight = 2
rate = {k80 = "16MB/s", p100 = "62MB/s", v100 = "114MB/s", a100 = "180MB/s", h100 = "205MB/s"}
restart = "30s"
checkpoint = "200MB"
packed = 0.55
gpu_memory = 0.4

[[model]]
name = "resnet152"
dataset = "imagenet-22k"
weight = 2
rate = {k80 = "6MB/s", p100 = "23MB/s", v100 = "43MB/s", a100 = "80MB/s", h100 = "150MB/s"}
restart = "30s"
checkpoint = "500MB"
packed = 0.55
gpu_memory = 0.5

[[model]]
name = "efficientnet"
dataset = "imagenet-22k"
weight = 2
rate = {k80 = "10MB/s", p100 = "40MB/s", v100 = "69MB/s", a100 = "110MB/s", h100 = "180MB/s"}
restart = "30s"
checkpoint = "100MB"
packed = 0.6
gpu_memory = 0.4

[[model]]
name = "video"
dataset = "youtube-8m"
weight = 1
rate = {k80 = "4MB/s", p100 = "8MB/s", v100 = "10MB/s", a100 = "20MB/s", h100 = "40MB/s"}
restart = "30s"
checkpoint = "500MB"
packed = 0.7
gpu_memory = 0.5

[[model]]
name = "bert"
dataset = "text"
weight = 2
rate = {k80 = "0.3MB/s", p100 = "1MB/s", v100 = "2MB/s", a100 = "4MB/s", h100 = "8MB/s"}
restart = "60s"
checkpoint = "4GB"
by_nodes = [1, 0.95]

[[model]]
name = "unet3d"
dataset = "openimages"
weight = 0
rate = {h100 = "3.18GB/s"}
restart = "30s"
checkpoint = "500MB"

[[model]]
name = "cosmoflow"
dataset = "youtube-8m"
weight = 0
rate = {h100 = "808MB/s"}
restart = "30s"
checkpoint = "100MB"
)";
}

}  // namespace larder::scheduler
