-- Counts the bandwidth of Larder's jobs in Slurm's licences (docs/slurm.md#licences), and holds the jobs of Larder's
-- partitions until Larder has placed them (docs/slurm.md#larder-decides). Lua 5.1.
-- A site with a job_submit.lua of its own calls larder_add_licences, larder_hold and larder_may_modify from there.

larder_partitions = larder_partitions or {}  -- the names of the partitions in which Larder decides

local program = os.getenv("LARDER_SLURM") or "larder-slurm"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Adds the licence remoteio:N to a job whose script has bandwidth=. The job may ask for further licences itself.
-- slurmctld waits for this: larder-slurm ends after 80 ms at the latest.
function larder_add_licences(job_desc)
    local script = job_desc.script
    if not script or not ("\n" .. script):find("\n#BB_LUA%s+larder%s[^\n]*bandwidth=") then return slurm.SUCCESS end
    if (job_desc.licenses or ""):find("remoteio", 1, true) then
        slurm.log_user("larder: remoteio follows from bandwidth= in the script: ask for no such licence")
        return slurm.ERROR
    end
    local path = os.tmpname()
    local file = io.open(path, "w")
    file:write(script)
    file:close()
    local pipe = io.popen(quoted(program) .. " licences " .. quoted(path) .. " 2>&1 </dev/null", "r")
    local answer = pipe and pipe:read("*a") or ""
    if pipe then pipe:close() end
    os.remove(path)
    local licences = answer:match("^ok\n(.-)%s*$")
    if not licences then
        slurm.log_user("larder: %s", (answer:gsub("^error\n", ""):gsub("%s+$", "")))
        return slurm.ERROR
    end
    if licences ~= "" then
        local own = job_desc.licenses or ""
        job_desc.licenses = own == "" and licences or own .. "," .. licences
    end
    return slurm.SUCCESS
end

local NONE = 4294967294  -- Slurm's value of a number that was not given

local function is_given(value)
    return value ~= nil and value ~= "" and value ~= NONE and value ~= 65534
end

-- The partitions that the job names, or the default one.
local function partitions_of(job_desc, part_list)
    if is_given(job_desc.partition) then return job_desc.partition end
    for name, partition in pairs(part_list) do
        if partition.flag_default ~= 0 then return name end
    end
    return ""
end

local function is_larders(names)
    for name in names:gmatch("[^,]+") do
        for _, ours in ipairs(larder_partitions) do
            if name == ours then return true end
        end
    end
    return false
end

-- The words that a line #LARDER may have.
local words = {
    dataset = true, epochs = true, ["ideal-rate"] = true, grace = true, ["restart-cost"] = true, hierarchy = true,
    together = true, cell = true,
}

-- Returns "dataset=images,epochs=90" for the lines #LARDER of the script's head, and the dataset; or nil and an error.
local function words_of(script)
    local found = {}
    local list = {}
    for line in (script or ""):gmatch("[^\n]+") do
        if not line:find("^#") and line:find("%S") then break end
        if line:find("^#BB_LUA%s+larder%s") then
            return nil, "write #LARDER, not #BB_LUA larder: in this partition Larder decides"
        end
        local rest = line:match("^#LARDER%s+(.*)$")
        for word in (rest or ""):gmatch("%S+") do
            local key, value = word:match("^([%w-]+)=([%w._:/+-]+)$")
            if not key or not words[key] then
                return nil, "#LARDER: \"" .. word .. "\": expected dataset=NAME, epochs=, ideal-rate=, grace=, restart-cost=, "
                    .. "hierarchy=, together= or cell="
            end
            if found[key] then return nil, "#LARDER: \"" .. word .. "\" was given before" end
            found[key] = value
            list[#list + 1] = key .. "=" .. value
        end
    end
    local text = table.concat(list, ",")
    if #text > 200 then return nil, "#LARDER: more than 200 characters" end
    return text, found.dataset
end

-- Why Larder cannot place such a job; nil: it can.
local function refusal(job_desc, names)
    if names:find(",") then return "name one partition only" end
    if is_given(job_desc.req_nodes) or is_given(job_desc.exc_nodes) then return "Larder picks the nodes: name none" end
    if is_given(job_desc.reservation) then return "Larder places no jobs in reservations" end
    if is_given(job_desc.het_job_offset) then return "Larder places no heterogeneous jobs" end
    if is_given(job_desc.max_nodes) and job_desc.max_nodes ~= job_desc.min_nodes then
        return "ask for one number of nodes: --nodes=N"
    end
    for _, tres in ipairs({"tres_per_job", "tres_per_task", "tres_per_socket"}) do
        if (job_desc[tres] or ""):find("gpu") then return "ask for GPUs of each node: --nodes=N --gpus-per-node=G" end
    end
    if not (job_desc.tres_per_node or ""):find("gpu") then return "ask for GPUs of each node: --gpus-per-node=G" end
    if (job_desc.account or ""):find("[^%w._-]") then return "the account's name has characters other than A-Z a-z 0-9 . _ -" end
    return nil
end

-- Holds a job of Larder's partitions until Larder has placed it. AdminComment, which users cannot change, says what the
-- job asks of Larder.
function larder_hold(job_desc, part_list)
    local names = partitions_of(job_desc, part_list)
    if not is_larders(names) then return slurm.SUCCESS end
    local why = refusal(job_desc, names)
    local list, dataset
    if not why then
        list, dataset = words_of(job_desc.script)
        if not list then why = dataset end
    end
    if why then
        slurm.log_user("larder: %s", why)
        return slurm.ERROR
    end
    job_desc.admin_comment = "larder" .. (list == "" and "" or "," .. list)
    job_desc.priority = 0
    -- Larder preempts by a requeue. Those who forbid that, and salloc and srun, are not preempted.
    job_desc.requeue = (job_desc.requeue == 0 or not job_desc.script) and 0 or 1
    if dataset and job_desc.environment then job_desc.environment["LARDER_DATASET"] = dataset end
    return slurm.SUCCESS
end

-- Only root may hold or release a job, or change what Larder has decided about. Users requeue and cancel
-- their jobs as ever.
function larder_may_modify(job_desc, job_rec, modify_uid)
    if modify_uid == 0 then return true end
    if not is_larders(job_rec.partition or "") then return not is_larders(job_desc.partition or "") end
    for _, key in ipairs({
        "priority", "nice", "partition", "reservation", "account", "requeue", "req_nodes", "exc_nodes", "min_nodes",
        "max_nodes", "tres_per_node",
    }) do
        if is_given(job_desc[key]) then return false end
    end
    return true
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    local held = larder_hold(job_desc, part_list)
    if held ~= slurm.SUCCESS then return held end
    return larder_add_licences(job_desc)
end

-- A user who could change the licences would undo the count. Root may.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if not larder_may_modify(job_desc, job_rec, modify_uid) then
        slurm.log_user("larder: Larder decides in this partition: cancel the job, and submit it again")
        return slurm.ESLURM_ACCESS_DENIED
    end
    if modify_uid ~= 0 and job_desc.licenses then
        return slurm.ESLURM_INVALID_LICENSES
    end
    return slurm.SUCCESS
end
